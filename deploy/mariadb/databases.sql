-- One database a service, and one for the messages between them.
CREATE DATABASE orders;
CREATE DATABASE payments;
CREATE DATABASE broker;
CREATE DATABASE notifications;
