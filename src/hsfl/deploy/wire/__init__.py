"""What travels between machines, and how it is checked on arrival: docs/protocol.md as code.

A message is a frozen record (`client_messages`, `server_messages`, with the limits of `message_fields`), numbered in
`messages` and turned into bytes by `frames`; `coded_tensors` are tensors that a codec made smaller. Models and sums travel as files in
pieces (`model_chunks`), trained heads as they are or coded (`coded_heads`), and `legal_state` refuses what training cannot give. `transport` opens gRPC servers and channels with their
`connection_limits`, `health` answers probes, `versions` says what a machine runs, `link_probe` measures rates. Who may call is not
decided here (`hsfl.deploy.trust`), nor what an answer is (`hsfl.deploy.main`, `hsfl.deploy.edge_server`).
"""
