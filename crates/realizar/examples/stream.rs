//! Text as it is generated, in blocking and in async code: `cargo run --release -p realizar --example stream -- [MODEL]`.
#![allow(clippy::print_stdout)]

use realizar::{Message, Model, TextEvent, TextParams};
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let demo = || concat!(env!("CARGO_MANIFEST_DIR"), "/../../assets/demo.gguf").to_owned();
    let model = Model::load(std::env::args().nth(1).unwrap_or_else(demo))?;
    let params = TextParams { max_tokens: Some(200), ..model.default_params() };
    let messages = [Message::user("Tell me a story about a fox.")];

    println!("--- An iterator of events");
    for event in model.chat(&messages, &params)? {
        match event? {
            TextEvent::Delta { text, .. } => print!("{text}"),
            TextEvent::Finished { reason, usage, timings, .. } => {
                println!("\n{reason:?}: {} tokens in {:?}", usage.completion_tokens, timings.decode);
            }
            TextEvent::Prompt(_) => {}
        }
    }

    println!("--- Dropping a stream cancels its request");
    let begun: Vec<_> = model.chat(&messages, &params)?.take(5).collect::<Result<_, _>>()?;
    println!("{} events", begun.len());

    println!("--- The same in async code");
    block_on(async {
        let mut stream = model.chat(&messages, &params)?;
        while let Some(event) = stream.next_event().await {
            if let TextEvent::Delta { text, .. } = event? {
                print!("{text}");
            }
        }
        println!();
        Ok(())
    })
}

/// A minimal executor; a stream needs no particular one.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut future = std::pin::pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => std::thread::park(),
        }
    }
}
