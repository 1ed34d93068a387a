"""Servers, clients and worlds that the tests of several directories share."""
