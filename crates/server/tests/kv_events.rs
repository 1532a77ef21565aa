//! KV events as subscribers see them, over real TCP.
//!
//! Aim: whoever follows the events knows what is cached, whoever is late can ask again, and nobody holds up anybody else. Method: a
//! client that speaks the published protocol byte by byte (<https://rfc.zeromq.org/spec/23/>). The official library's sockets are
//! tested by tools/test-fleet.
#![allow(missing_docs, unreachable_pub, dead_code)]

mod http;

use http::{PATIENCE, TestServer};
use realizar_server::KvEvents;
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

const TEXT: &str = "/v1/completions";

/// A socket of this type, after the handshake.
fn connect(address: SocketAddr, kind: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address).expect("a connection");
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    let mut greeting = [0; 64];
    (greeting[0], greeting[9], greeting[10], greeting[11]) = (0xFF, 0x7F, 3, 1);
    greeting[12..16].copy_from_slice(b"NULL");
    stream.write_all(&greeting).expect("it is read");
    let mut theirs = [0; 64];
    stream.read_exact(&mut theirs).expect("a greeting");
    assert_eq!(theirs[10], 3);
    let ready = [b"\x05READY\x0bSocket-Type\x00\x00\x00", &[kind.len() as u8][..], kind.as_bytes()].concat();
    stream.write_all(&[&[4, ready.len() as u8], &ready[..]].concat()).expect("it is read");
    stream
}

/// The next frame and its flags.
fn frame(stream: &mut TcpStream) -> (u8, Vec<u8>) {
    let mut flags = [0];
    stream.read_exact(&mut flags).expect("flags");
    let mut length = [0; 8];
    let at = if flags[0] & 2 == 0 { 7 } else { 0 };
    stream.read_exact(&mut length[at..]).expect("a length");
    let mut body = vec![0; u64::from_be_bytes(length) as usize];
    stream.read_exact(&mut body).expect("a frame");
    (flags[0], body)
}

/// The frames of the next message; commands are passed over.
fn message(stream: &mut TcpStream) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    loop {
        let (flags, body) = frame(stream);
        if flags & 4 == 0 {
            frames.push(body);
            if flags & 1 == 0 {
                return frames;
            }
        }
    }
}

/// A subscriber to this topic.
fn subscribe(address: SocketAddr, topic: &[u8]) -> TcpStream {
    let mut stream = connect(address, "SUB");
    let _ready = frame(&mut stream);
    let body = [b"\x01", topic].concat();
    stream.write_all(&[&[0, body.len() as u8], &body[..]].concat()).expect("it is read");
    // The answer to a heartbeat comes after what was sent before it.
    stream.write_all(b"\x04\x09\x04PING\x00\x00hi").expect("it is read");
    while frame(&mut stream) != (4, b"\x04PONGhi".to_vec()) {}
    stream
}

fn number(frame: &[u8]) -> i64 {
    i64::from_be_bytes(frame.try_into().expect("8 bytes"))
}

fn batch(payload: &[u8]) -> Value {
    rmp_serde::from_slice(payload).expect("msgpack")
}

/// All batches from a number on.
fn replay(stream: &mut TcpStream, from: u64) -> Vec<(i64, Value)> {
    stream.write_all(&[&[1, 0, 0, 8], &from.to_be_bytes()[..]].concat()).expect("it is read");
    let mut batches = Vec::new();
    loop {
        let frames = message(stream);
        assert_eq!((frames.len(), frames[0].len()), (3, 0));
        if number(&frames[1]) == -1 {
            assert!(frames[2].is_empty());
            return batches;
        }
        batches.push((number(&frames[1]), batch(&frames[2])));
    }
}

/// A server and where it publishes and sends again.
fn serve(events: KvEvents) -> (TestServer, SocketAddr, SocketAddr) {
    let server = TestServer::with(|setup| setup.load.block_size = 8);
    let replay_endpoint = Some("tcp://127.0.0.1:*".to_owned());
    let events = KvEvents { endpoint: "tcp://127.0.0.1:0".to_owned(), replay_endpoint, ..events };
    let addresses = events.publish(server.client()).expect("free ports");
    (server, addresses[0], addresses[1])
}

/// The prompt's and the answer's tokens of a completion.
fn complete(server: &TestServer, prompt: &Value, max_tokens: usize) -> Vec<u64> {
    let body =
        json!({"prompt": prompt, "temperature": 0, "max_tokens": max_tokens, "return_token_ids": true});
    let answer = server.post(TEXT, &body).ok();
    let ids = |key: &str| answer["choices"][0][key].as_array().expect("ids").clone();
    ids("prompt_token_ids").iter().chain(&ids("token_ids")).map(|id| id.as_u64().expect("an id")).collect()
}

#[test]
fn subscribers_learn_what_is_cached_and_late_ones_can_ask_again() {
    let (server, events, again) = serve(KvEvents { topic: "kv@demo".into(), ..KvEvents::default() });
    let mut early = subscribe(events, b"kv@");
    let mut other = subscribe(events, b"other");
    let tokens =
        complete(&server, &json!("Once upon a time there was a little fox who lived in the wood."), 24);
    let n_blocks = (tokens.len() - 1) / 8;
    let (mut hashes, mut known, mut expected) = (Vec::new(), Vec::new(), None);
    while hashes.len() < n_blocks {
        let frames = message(&mut early);
        assert_eq!(frames[0], b"kv@demo");
        assert_eq!(number(&frames[1]), expected.unwrap_or(number(&frames[1])), "no number is left out");
        expected = Some(number(&frames[1]) + 1);
        let batch = batch(&frames[2]);
        assert_eq!(batch.as_array().map(Vec::len), Some(3));
        assert!(batch[0].as_f64().expect("a time") > 1.7e9);
        assert_eq!(batch[2], 0, "the rank");
        for event in batch[1].as_array().expect("events") {
            if event["type"] == "AllBlocksCleared" {
                continue;
            }
            assert_eq!(event["type"], "BlockStored");
            assert_eq!((&event["block_size"], &event["medium"]), (&json!(8), &json!("GPU")));
            assert_eq!(event["parent_block_hash"].as_u64(), hashes.last().copied());
            hashes.extend(
                event["block_hashes"].as_array().expect("hashes").iter().map(|h| h.as_u64().expect("a hash")),
            );
            known.extend(
                event["token_ids"].as_array().expect("ids").iter().map(|id| id.as_u64().expect("an id")),
            );
        }
    }
    assert_eq!(known, tokens[..n_blocks * 8]);
    // Nothing was sent for another topic, and a late one gets all of it when it asks.
    let mut late = connect(again, "DEALER");
    let all = replay(&mut late, 0);
    assert_eq!(all[0].1[1][0], json!({"type": "AllBlocksCleared"}), "a server begins with nothing");
    let numbers: Vec<i64> = all.iter().map(|(number, _)| *number).collect();
    assert_eq!(numbers, (0..all.len() as i64).collect::<Vec<_>>());
    assert_eq!(Some(all.len() as i64), expected);
    assert_eq!(replay(&mut late, all.len() as u64 - 1), all[all.len() - 1..]);
    assert_eq!(replay(&mut late, u64::MAX), []);
    other.set_nonblocking(true).expect("a mode");
    assert_eq!(other.read(&mut [0]).expect_err("nothing").kind(), std::io::ErrorKind::WouldBlock);
}

#[test]
fn blocks_that_are_given_up_are_removed() {
    let (server, _, again) = serve(KvEvents::default());
    let mut router = connect(again, "REQ");
    // More than the cache of 8,192 tokens holds, in blocks that are all different.
    for i in 0..12 {
        let prompt: Vec<u64> = (0..900).map(|j| 20 + (i * 37 + j * (i + 1)) % 300).collect();
        complete(&server, &json!(prompt), 1);
    }
    let (mut cached, mut n_removed) = (std::collections::BTreeSet::new(), 0);
    for (_, batch) in replay(&mut router, 0) {
        for event in batch[1].as_array().expect("events") {
            for hash in event["block_hashes"].as_array().into_iter().flatten() {
                let hash = hash.as_u64().expect("a hash");
                n_removed += u64::from(event["type"] == "BlockRemoved");
                assert!(if event["type"] == "BlockRemoved" {
                    cached.remove(&hash)
                } else {
                    cached.insert(hash)
                });
            }
        }
    }
    assert!(n_removed > 0);
    assert!(cached.len() as u64 <= server.client().stats().blocks_cached.get());
}

#[test]
fn who_speaks_something_else_or_reads_nothing_holds_up_nobody() {
    let (server, events, again) = serve(KvEvents { buffer: 3, ..KvEvents::default() });
    let _silent = TcpStream::connect(events).expect("a connection");
    let _deaf = subscribe(events, b"");
    let mut wrong = TcpStream::connect(events).expect("a connection");
    wrong.write_all(&[b'G'; 64]).expect("it is read");
    let mut publisher = connect(events, "PUB");
    let (_ready, (flags, error)) = (frame(&mut publisher), frame(&mut publisher));
    assert!(flags == 4 && error.starts_with(b"\x05ERROR"), "{error:?}");
    for i in 0..4 {
        complete(
            &server,
            &json!(format!("The {i} foxes went into the wood and were happy there all day long.")),
            12,
        );
    }
    let last = replay(&mut connect(again, "DEALER"), 0);
    assert_eq!(last.len(), 3, "the last batches are kept");
    assert!(last[0].0 > 0 && last[2].0 == last[0].0 + 2);
    let mut rest = Vec::new();
    assert_eq!(wrong.read_to_end(&mut rest).map_err(|e| e.kind()).ok(), Some(64), "a greeting and the end");
}

#[test]
fn endpoints_that_cannot_be_are_refused_by_name() {
    let server = TestServer::start();
    for endpoint in ["", "5557", "ipc:///tmp/kv", "tcp://*", "tcp://:1", "tcp://*:x", "tcp://*:65536"] {
        let events = KvEvents { endpoint: endpoint.into(), ..KvEvents::default() };
        let error = events.publish(server.client()).expect_err(endpoint);
        assert!(error.to_string().contains("expected tcp://HOST:PORT"), "{error}");
    }
}
