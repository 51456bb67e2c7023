"""The same training on real machines: certificates, servers, clients. Needs the extra `deploy`."""
