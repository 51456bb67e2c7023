"""Who is let in: the CA and its certificates, and the checks on both ends of a connection.

The operator's CA issues, renews and revokes (`authority`, `denylist`). A device checks its own files before it connects
(`bundle`), and TLS is set up from them (`credentials`). A server refuses a certificate in `gate`, by the name, role and
last day that `identity` reads from it; `expiry` counts the days until then. What a peer sends once it is in is checked elsewhere: messages in `hsfl.deploy.wire`,
heads in `hsfl.deploy.edge_server`, batches in `hsfl.deploy.main.main_round`.
"""
