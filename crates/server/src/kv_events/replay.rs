//! The ROUTER socket: whoever sends a batch's number gets all from there on that are still kept, and an end.

use super::log::Log;
use super::zmtp::{self, Incoming};
use std::sync::Arc;
use tokio::net::TcpStream;

/// The number that ends a replay: -1.
const END: [u8; 8] = [0xFF; 8];

/// Answers a peer until it goes away. A request is an empty frame and a number in 8 bytes, the highest first.
pub(super) async fn serve(stream: TcpStream, log: Arc<Log>) -> Result<(), zmtp::Error> {
    let (mut reader, mut writer) = zmtp::handshake(stream, "ROUTER", &["REQ", "DEALER", "ROUTER"]).await?;
    loop {
        match reader.next().await? {
            Incoming::Message(frames) => {
                let [delimiter, number] = &frames[..] else {
                    tracing::warn!(
                        n_frames = frames.len(),
                        "a request for KV events needs an empty frame and a number"
                    );
                    continue;
                };
                let Ok(number) = <[u8; 8]>::try_from(&**number) else {
                    tracing::warn!(
                        n_bytes = number.len(),
                        "the number in a request for KV events needs 8 bytes"
                    );
                    continue;
                };
                for batch in log.since(u64::from_be_bytes(number)) {
                    writer.message(&[delimiter, &batch.number.to_be_bytes(), &batch.payload]);
                    writer.flush().await?;
                }
                writer.message(&[delimiter, &END, &[]]);
            }
            Incoming::Command(name, data) if name == b"PING" => writer.pong(&data),
            Incoming::Command(..) => {}
        }
        writer.flush().await?;
    }
}
