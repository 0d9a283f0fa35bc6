-- One database a service: no service reads another's tables. One more is for the
-- messages between them, in profiles with SQL pub/sub. The last one is what the
-- health check waits for.
CREATE DATABASE orders;
CREATE DATABASE payments;
CREATE DATABASE broker;
CREATE DATABASE notifications;
