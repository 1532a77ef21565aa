//! Every option of the server, with its unit and default.

use std::time::Duration;

/// Options of the server.
#[derive(Clone, PartialEq)]
pub struct Config {
    /// Names or addresses to listen at. Default `127.0.0.1`.
    pub hosts: Vec<String>,
    /// Port to listen at, the same for all; 0 takes any free one. Default 8080.
    pub port: u16,
    /// Keys, one of which a client must show; empty: nobody is asked. Default empty.
    pub api_keys: Vec<String>,
    /// Clients with different keys share no cached prefixes. Default false.
    pub salt_by_key: bool,
    /// Origins whose web pages may use the server, or `*`. Default empty.
    pub cors: Vec<String>,
    /// Further names by which clients may address the server; with any, all other names are refused. On loopback without
    /// keys, names other than localhost are refused in any case. Default empty.
    pub allowed_hosts: Vec<String>,
    /// Size of a request at most, in bytes. Default 8 MiB.
    pub max_body: usize,
    /// Memory for the bodies of all requests that are still arriving, in bytes; at least what one needs. Default 128 MiB.
    pub body_memory: usize,
    /// How long a shutdown lets answers finish. Default 30 s.
    pub drain: Duration,
    /// Whether whoever passed on the listening sockets keeps them, as systemd does: then connections that come after the server was told to
    /// stop wait for the next process instead of being refused. Default false.
    pub keeps_sockets: bool,
    /// How long a client may take to send a request's headers, also after the request before on the same connection. Default 30 s.
    pub header_timeout: Duration,
    /// How long a client may take to send a request's body. Default 30 s.
    pub body_timeout: Duration,
    /// How long a client may read nothing of its answer. Default 30 s.
    pub write_timeout: Duration,
    /// Connections at one time; more wait to be accepted. Default 16384.
    pub max_connections: usize,
    /// A collector of spans, such as `http://localhost:4318`, which takes OTLP/HTTP. Default `None`.
    pub otlp: Option<String>,
    /// Objects of a JSON schema that does not mention `additionalProperties` may have further properties, as the standard says; by
    /// default they have those of the schema only.
    pub open_schemas: bool,
    /// Memory for responses of `/v1/responses` that later requests may go on after, in bytes of JSON; 0 stores none. Default 64 MiB.
    pub response_memory: usize,
    /// Leaves the line `x-anthropic-billing-header` in system prompts of `/v1/messages`; by default it is taken out, since it differs
    /// from request to request and says nothing to the model.
    pub keep_billing_header: bool,
    /// How long compiling the format of one answer (a schema, pattern, grammar or tools) may take. Default 2 s.
    pub format_timeout: Duration,
    /// How long a step of an encoder may take before `/health` calls it stuck. Default 120 s.
    pub longest_encoder_step: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            hosts: vec!["127.0.0.1".into()],
            port: 8080,
            api_keys: Vec::new(),
            salt_by_key: false,
            cors: Vec::new(),
            allowed_hosts: Vec::new(),
            max_body: 8 << 20,
            body_memory: 128 << 20,
            drain: Duration::from_secs(30),
            keeps_sockets: false,
            header_timeout: Duration::from_secs(30),
            body_timeout: Duration::from_secs(30),
            write_timeout: Duration::from_secs(30),
            max_connections: 16384,
            otlp: None,
            open_schemas: false,
            response_memory: 64 << 20,
            keep_billing_header: false,
            format_timeout: Duration::from_secs(2),
            longest_encoder_step: Duration::from_secs(120),
        }
    }
}

impl std::fmt::Debug for Config {
    /// Without the keys: it is logged.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Config")
            .field("hosts", &self.hosts)
            .field("port", &self.port)
            .field("n_api_keys", &self.api_keys.len())
            .field("salt_by_key", &self.salt_by_key)
            .field("cors", &self.cors)
            .field("allowed_hosts", &self.allowed_hosts)
            .field("max_body", &self.max_body)
            .field("body_memory", &self.body_memory)
            .field("drain", &self.drain)
            .field("keeps_sockets", &self.keeps_sockets)
            .field("header_timeout", &self.header_timeout)
            .field("body_timeout", &self.body_timeout)
            .field("write_timeout", &self.write_timeout)
            .field("max_connections", &self.max_connections)
            .field("otlp", &self.otlp)
            .field("open_schemas", &self.open_schemas)
            .field("response_memory", &self.response_memory)
            .field("keep_billing_header", &self.keep_billing_header)
            .field("format_timeout", &self.format_timeout)
            .field("longest_encoder_step", &self.longest_encoder_step)
            .finish()
    }
}
