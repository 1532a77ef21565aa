//! ZeroMQ's wire protocol, version 3.0 with the NULL mechanism, as far as sockets that accept connections need it.
//!
//! Source: <https://rfc.zeromq.org/spec/23/>. A connection begins with a greeting of 64 bytes and a READY command from either side;
//! then come messages of one or more frames, and commands.

use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};

/// Why a connection ends.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    #[error("{0}")]
    Io(#[from] std::io::Error),
    #[error("not ZMTP 3 with the NULL mechanism")]
    Protocol,
    #[error("a socket of type {0:?} cannot connect here")]
    SocketType(String),
    #[error("too slow")]
    Timeout,
}

/// What a peer sends.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Incoming {
    /// All frames of a message.
    Message(Vec<Vec<u8>>),
    /// A command with its name and data.
    Command(Vec<u8>, Vec<u8>),
}

/// Subscriptions and requests take a few bytes; more than this is somebody else.
const MAX_FRAME: u64 = 4096;
const MAX_FRAMES: usize = 16;
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);

const MORE: u8 = 1;
const LONG: u8 = 2;
const COMMAND: u8 = 4;

/// The reading side of a connection.
pub(super) struct Reader(tokio::io::BufReader<OwnedReadHalf>);

/// The writing side of a connection.
pub(super) struct Writer {
    stream: OwnedWriteHalf,
    buffer: Vec<u8>,
}

/// Introduces this side as a socket of type `own`, to a peer of one of the types `peers`.
pub(super) async fn handshake(
    stream: TcpStream,
    own: &str,
    peers: &[&str],
) -> Result<(Reader, Writer), Error> {
    // A batch is one write and should not wait for the next.
    stream.set_nodelay(true)?;
    let (read, write) = stream.into_split();
    let (mut reader, mut writer) =
        (Reader(tokio::io::BufReader::new(read)), Writer { stream: write, buffer: Vec::new() });
    let shake = async {
        writer.stream.write_all(&greeting()).await?;
        let mut greeting = [0; 64];
        reader.0.read_exact(&mut greeting).await?;
        let is_ours = greeting[0] == 0xFF && greeting[9] & 1 == 1 && greeting[10] >= 3;
        if !is_ours || greeting[12..32] != mechanism() {
            return Err(Error::Protocol);
        }
        writer.command(b"READY", &property("Socket-Type", own));
        writer.flush().await?;
        let Incoming::Command(name, data) = reader.next().await? else { return Err(Error::Protocol) };
        if name != b"READY" {
            return Err(Error::Protocol);
        }
        let peer = socket_type(&data).ok_or(Error::Protocol)?;
        if !peers.contains(&&*peer) {
            let reason = format!("{peer} cannot connect to {own}");
            writer.command(b"ERROR", &[&[reason.len() as u8], reason.as_bytes()].concat());
            writer.flush().await?;
            return Err(Error::SocketType(peer));
        }
        Ok(())
    };
    tokio::time::timeout(HANDSHAKE_TIMEOUT, shake).await.map_err(|_| Error::Timeout)??;
    Ok((reader, writer))
}

fn greeting() -> [u8; 64] {
    let mut greeting = [0; 64];
    (greeting[0], greeting[9], greeting[10]) = (0xFF, 0x7F, 3);
    greeting[12..32].copy_from_slice(&mechanism());
    greeting
}

fn mechanism() -> [u8; 20] {
    let mut name = [0; 20];
    name[..4].copy_from_slice(b"NULL");
    name
}

fn property(name: &str, value: &str) -> Vec<u8> {
    let length = (value.len() as u32).to_be_bytes();
    [&[name.len() as u8], name.as_bytes(), &length, value.as_bytes()].concat()
}

/// The peer's type among the properties of its READY command.
fn socket_type(mut data: &[u8]) -> Option<String> {
    while let Some((&n, rest)) = data.split_first() {
        let (name, rest) = rest.split_at_checked(n as usize)?;
        let (length, rest) = rest.split_first_chunk::<4>()?;
        let (value, rest) = rest.split_at_checked(u32::from_be_bytes(*length) as usize)?;
        if name.eq_ignore_ascii_case(b"Socket-Type") {
            return String::from_utf8(value.to_vec()).ok().filter(|v| v.len() < 32);
        }
        data = rest;
    }
    None
}

impl Reader {
    /// The next message or command. Must not be dropped before it is there, or what was read of it is lost.
    pub(super) async fn next(&mut self) -> Result<Incoming, Error> {
        let mut frames = Vec::new();
        loop {
            let flags = self.0.read_u8().await?;
            let length = match flags & LONG {
                0 => u64::from(self.0.read_u8().await?),
                _ => self.0.read_u64().await?,
            };
            if length > MAX_FRAME || frames.len() == MAX_FRAMES {
                return Err(Error::Protocol);
            }
            let mut frame = vec![0; length as usize];
            self.0.read_exact(&mut frame).await?;
            if flags & COMMAND != 0 {
                let (&n, rest) = frame.split_first().ok_or(Error::Protocol)?;
                let (name, data) = rest.split_at_checked(n as usize).ok_or(Error::Protocol)?;
                return Ok(Incoming::Command(name.to_vec(), data.to_vec()));
            }
            frames.push(frame);
            if flags & MORE == 0 {
                return Ok(Incoming::Message(frames));
            }
        }
    }
}

impl Writer {
    /// Queues a message for the next flush.
    pub(super) fn message(&mut self, frames: &[&[u8]]) {
        for (i, frame) in frames.iter().enumerate() {
            let more = if i + 1 < frames.len() { MORE } else { 0 };
            self.frame(more, frame);
        }
    }

    /// Queues a command for the next flush.
    pub(super) fn command(&mut self, name: &[u8], data: &[u8]) {
        self.frame(COMMAND, &[&[name.len() as u8], name, data].concat());
    }

    /// Queues the answer to a heartbeat: its context, which follows a time to live of two bytes.
    pub(super) fn pong(&mut self, ping: &[u8]) {
        self.command(b"PONG", ping.get(2..).unwrap_or_default());
    }

    fn frame(&mut self, flags: u8, frame: &[u8]) {
        match u8::try_from(frame.len()) {
            Ok(length) => self.buffer.extend([flags, length]),
            Err(_) => {
                self.buffer.push(flags | LONG);
                self.buffer.extend((frame.len() as u64).to_be_bytes());
            }
        }
        self.buffer.extend_from_slice(frame);
    }

    /// Sends what is queued. A peer that takes nothing for long is given up.
    pub(super) async fn flush(&mut self) -> Result<(), Error> {
        let sent = tokio::time::timeout(WRITE_TIMEOUT, self.stream.write_all(&self.buffer)).await;
        self.buffer.clear();
        Ok(sent.map_err(|_| Error::Timeout)??)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_type_of_a_peer_is_found_among_its_properties() {
        let data = [property("Identity", ""), property("socket-type", "SUB")].concat();
        assert_eq!(socket_type(&data).as_deref(), Some("SUB"));
        for wrong in [&data[..5], &data[..data.len() - 1], &[], &[200, 1]] {
            assert_eq!(socket_type(wrong), None);
        }
    }
}
