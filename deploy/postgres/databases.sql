-- One database a service: no service reads another's tables. The last one is
-- what the health check waits for.
CREATE DATABASE orders;
CREATE DATABASE payments;
CREATE DATABASE notifications;
