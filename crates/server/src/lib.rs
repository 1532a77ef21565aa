//! The OpenAI-compatible HTTP server: wire types, routes, streaming, structured output, tool calls.

pub mod reasoning;
pub mod structured;
pub mod tool_calls;
