//! The OpenAI-compatible HTTP server: wire types, routes, streaming, structured output, tool calls.

pub mod structured;
