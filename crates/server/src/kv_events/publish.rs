//! The PUB socket: every subscriber gets the batches that are appended after its subscription, at its own pace.

use super::log::Log;
use super::zmtp::{self, Incoming, Reader, Writer};
use std::sync::Arc;
use tokio::net::TcpStream;
use tokio::sync::mpsc;

/// Serves a subscriber until it goes away. One that is slower than the log is long misses batches, and sees that by their numbers.
pub(super) async fn serve(stream: TcpStream, log: Arc<Log>) -> Result<(), zmtp::Error> {
    let (reader, writer) = zmtp::handshake(stream, "PUB", &["SUB", "XSUB"]).await?;
    let (sender, incoming) = mpsc::channel(16);
    tokio::select! {
        ended = read(reader, sender) => ended,
        ended = write(writer, incoming, &log) => ended,
    }
}

async fn read(mut reader: Reader, sender: mpsc::Sender<Incoming>) -> Result<(), zmtp::Error> {
    loop {
        let incoming = reader.next().await?;
        if sender.send(incoming).await.is_err() {
            return Ok(());
        }
    }
}

async fn write(
    mut writer: Writer,
    mut incoming: mpsc::Receiver<Incoming>,
    log: &Log,
) -> Result<(), zmtp::Error> {
    let mut next = log.next();
    let mut subscriptions = Subscriptions::default();
    let mut place = None;
    loop {
        tokio::select! {
            received = incoming.recv() => match received {
                Some(Incoming::Command(name, data)) if name == b"PING" => {
                    writer.pong(&data);
                    writer.flush().await?;
                }
                Some(received) => {
                    subscriptions.take(&received);
                    let wanted = subscriptions.want(&log.topic);
                    place = wanted.then(|| place.unwrap_or(*next.borrow_and_update()));
                }
                None => return Ok(()),
            },
            changed = next.changed() => if changed.is_err() {
                return Ok(());
            },
        }
        while let Some((at, batch)) = place.and_then(|at| Some((at, log.at(at)?))) {
            if batch.number > at {
                tracing::debug!(
                    n = batch.number - at,
                    "a subscriber of KV events is too slow and misses batches"
                );
            }
            writer.message(&[&log.topic, &batch.number.to_be_bytes(), &batch.payload]);
            writer.flush().await?;
            place = Some(batch.number + 1);
        }
    }
}

/// What a subscriber wants: messages that begin with one of these.
#[derive(Default)]
struct Subscriptions(Vec<Vec<u8>>);

impl Subscriptions {
    /// Follows a subscription or its end, in the form of version 3.0 (a message) or 3.1 (a command).
    fn take(&mut self, incoming: &Incoming) {
        let (adds, prefix) = match incoming {
            Incoming::Message(frames) => match frames.first().and_then(|frame| frame.split_first()) {
                Some((1, prefix)) => (true, prefix),
                Some((0, prefix)) => (false, prefix),
                _ => return,
            },
            Incoming::Command(name, prefix) => match &**name {
                b"SUBSCRIBE" => (true, &**prefix),
                b"CANCEL" => (false, &**prefix),
                _ => return,
            },
        };
        if !adds {
            if let Some(i) = self.0.iter().position(|known| known == prefix) {
                self.0.swap_remove(i);
            }
        } else if self.0.len() < 1024 {
            self.0.push(prefix.to_vec());
        }
    }

    fn want(&self, topic: &[u8]) -> bool {
        self.0.iter().any(|prefix| topic.starts_with(prefix))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subscriptions_are_prefixes_and_count() {
        let mut subscriptions = Subscriptions::default();
        assert!(!subscriptions.want(b""));
        subscriptions.take(&Incoming::Message(vec![b"\x01kv".to_vec()]));
        subscriptions.take(&Incoming::Command(b"SUBSCRIBE".to_vec(), b"kv".to_vec()));
        assert!(subscriptions.want(b"kv-events") && subscriptions.want(b"kv") && !subscriptions.want(b"k"));
        subscriptions.take(&Incoming::Command(b"CANCEL".to_vec(), b"kv".to_vec()));
        assert!(subscriptions.want(b"kv"));
        subscriptions.take(&Incoming::Message(vec![b"\x00kv".to_vec()]));
        subscriptions.take(&Incoming::Message(vec![]));
        assert!(!subscriptions.want(b"kv"));
    }
}
