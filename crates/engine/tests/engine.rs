//! The engine's thread and its client: streams, cancellation, slow readers, failures, shutdown.
//!
//! Method: the runner of `support`, whose steps a test can hold back one by one or make fail.

mod support;

use realizar_compute::BatchLimits;
use realizar_engine::{
    Client, Constraint, Engine, EngineConfig, Error, Event, Fault, FinishReason, Health, Request, RunnerInfo,
    SampleError, SamplingParams, Stream, Stuck, StuckPart, TokenMask,
};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};
use support::{At, Case, FakeRunner, Random, solo};

const INFO: RunnerInfo = RunnerInfo {
    vocab_size: support::VOCAB_SIZE,
    n_blocks: 64,
    block_size: 4,
    context_length: 200,
    limits: BatchLimits { n_tokens: 64, n_seqs: 16, n_blocks: 1000, n_logits: 32 },
    slots: None,
    asynchronous: true,
    drafts: false,
};

fn start(config: EngineConfig) -> Client {
    Engine::start(Box::new(FakeRunner::new(INFO)), config)
}

fn until(done: impl Fn() -> bool) {
    let begin = Instant::now();
    while !done() {
        assert!(begin.elapsed() < Duration::from_secs(60), "not within a minute");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// An engine that makes a step only when told to.
fn start_gated(config: EngineConfig) -> (Client, Sender<()>) {
    let (permit, permits): (Sender<()>, Receiver<()>) = channel();
    let mut runner = FakeRunner::new(INFO);
    runner.fault = Box::new(move |at| {
        if at == At::Launch {
            let _ = permits.recv();
        }
        None
    });
    (Engine::start(Box::new(runner), config), permit)
}

fn greedy(prompt: &[u32], max_tokens: usize) -> (Request, Vec<u32>) {
    let case = Case::greedy(prompt.to_vec(), max_tokens);
    (case.request(), solo(&case, 0, INFO.max_seq_len()).tokens)
}

fn wait_until(what: &str, condition: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(20);
    while !condition() {
        assert!(Instant::now() < end, "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn requests_of_many_threads_get_their_own_tokens() {
    for overlap in [false, true] {
        let client = start(EngineConfig { overlap: Some(overlap), ..EngineConfig::default() });
        let threads: Vec<_> = (0..6)
            .map(|t| {
                let client = client.clone();
                std::thread::spawn(move || {
                    let mut random = Random::new(t);
                    let bases = vec![Random::new(99).tokens(60), Random::new(98).tokens(9)];
                    for _ in 0..30 {
                        let mut case = Case::random(&mut random, 100, &bases);
                        case.prompt_logprobs = None;
                        let choices = client.submit(case.request()).unwrap().collect_tokens().unwrap();
                        assert_eq!(choices.len(), case.n as usize);
                        for (i, (tokens, reason)) in choices.into_iter().enumerate() {
                            let expected = solo(&case, i as u32, INFO.max_seq_len());
                            assert_eq!((tokens, reason), (expected.tokens, expected.reason), "{case:?}");
                        }
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|t| t.join().unwrap());
        wait_until("all blocks are back", || client.stats().blocks_in_use.get() == 0);
        let stats = client.stats();
        assert_eq!(stats.requests.get(), 180);
        assert_eq!(stats.running.get() + stats.waiting.get(), 0);
        assert!(stats.first_token_time.count() > 0 && stats.cache_hit_tokens.get() > 0);
    }
}

#[test]
fn what_cannot_be_served_is_refused_before_any_step() {
    let client = start(EngineConfig::default());
    let refused = |request| client.submit(request).map(|_| ()).unwrap_err();
    assert_eq!(refused(Request::new(vec![], 5)), Error::EmptyPrompt);
    let error = refused(Request::new(vec![1; 201], 5));
    assert_eq!(
        error,
        Error::PromptTooLong { n_prompt: 201, limit: 200, context_length: 200, cache_tokens: 256 }
    );
    let message = error.to_string();
    // Clients recognise the error by these words.
    assert!(message.contains("maximum context length is 200") && message.contains("201"), "{message}");
    let mut request = Request::new(vec![1], 5);
    request.sampling.top_p = f32::NAN;
    assert!(matches!(refused(request), Error::InvalidParam { name: "top_p", .. }));
    assert_eq!(error.fault(), Fault::Client);
    assert_eq!(client.stats().steps.get(), 0);
}

#[test]
fn no_tokens_are_generated_when_none_are_wanted() {
    let client = start(EngineConfig::default());
    let mut stream = client.submit(Request::new(vec![1, 2], 0)).unwrap();
    let event = stream.recv().unwrap();
    assert!(matches!(event, Event::Finished { reason: FinishReason::Length, usage, .. }
        if usage.completion_tokens == 0 && usage.prompt_tokens == 2));
    assert_eq!(stream.recv(), None);
    assert_eq!(client.stats().steps.get(), 0);
}

#[test]
fn the_end_of_the_context_ends_with_length() {
    let client = start(EngineConfig::default());
    let prompt = Random::new(5).tokens(190);
    let (request, expected) = greedy(&prompt, 1000);
    let choices = client.submit(request).unwrap().collect_tokens().unwrap();
    // Prompt and continuation together fill the context of 200 tokens, and not one more.
    assert_eq!(expected.len(), 10);
    assert_eq!(choices, [(expected, FinishReason::Length)]);
    let full = Request::new(Random::new(5).tokens(200), 5);
    let choices = client.submit(full).unwrap().collect_tokens().unwrap();
    assert_eq!(
        choices,
        [(vec![], FinishReason::Length)],
        "a prompt that fills the context has no continuation"
    );
}

#[test]
fn a_dropped_stream_frees_its_blocks_within_one_step() {
    for overlap in [false, true] {
        let (client, permit) = start_gated(EngineConfig {
            overlap: Some(overlap),
            prefix_cache: false,
            ..EngineConfig::default()
        });
        let mut stream = client.submit(greedy(&[1, 2, 3, 4, 5], 100).0).unwrap();
        (0..4).for_each(|_| permit.send(()).unwrap());
        assert!(matches!(stream.recv(), Some(Event::Token { .. })));
        wait_until("blocks are in use", || client.stats().blocks_in_use.get() > 0);
        drop(stream);
        // The launch that waits for its permit was decided before.
        permit.send(()).unwrap();
        wait_until("the blocks are back", || client.stats().blocks_free.get() == INFO.n_blocks as u64);
        assert!(client.stats().steps.get() <= 5 + u64::from(overlap), "{}", client.stats().steps.get());
    }
}

/// The step's tokens are delivered to nobody, before the reader's wish to cancel comes.
#[test]
fn a_request_whose_reader_leaves_during_a_step_is_counted() {
    for overlap in [false, true] {
        let leaving: Arc<Mutex<Option<Stream>>> = Arc::default();
        let (permit, permits): (Sender<()>, Receiver<()>) = channel();
        let mut runner = FakeRunner::new(INFO);
        let stream = leaving.clone();
        runner.fault = Box::new(move |at| {
            match at {
                At::Launch => drop(permits.recv()),
                At::Finish => drop(stream.lock().unwrap().take()),
            }
            None
        });
        let config = EngineConfig { overlap: Some(overlap), ..EngineConfig::default() };
        let client = Engine::start(Box::new(runner), config);
        let request = Request { n: 2, ..greedy(&[1, 2, 3], 100).0 };
        *leaving.lock().unwrap() = Some(client.submit(request).unwrap());
        drop(permit);
        wait_until("both choices are counted", || client.stats().finished_cancelled.get() == 2);
        let (request, expected) = greedy(&[1, 2, 3], 5);
        assert_eq!(client.submit(request).unwrap().collect_tokens().unwrap()[0].0, expected);
        assert_eq!(client.stats().finished_cancelled.get(), 2);
    }
}

#[test]
fn a_cancelled_choice_leaves_the_others_alone() {
    // Nobody reads yet, so that no choice ends before it is cancelled.
    let client = start(EngineConfig { stream_capacity: 8, ..EngineConfig::default() });
    let mut case = Case::greedy(vec![7; 5], 60);
    case.n = 3;
    case.params.temperature = 1.0;
    case.params.seed = Some(4);
    let stream = client.submit(case.request()).unwrap();
    stream.cancel_choice(1);
    let choices = stream.collect_tokens().unwrap();
    for (i, (tokens, reason)) in choices.iter().enumerate() {
        let expected = solo(&case, i as u32, INFO.max_seq_len()).tokens;
        match i {
            1 => assert_eq!((&expected[..tokens.len()], *reason), (&tokens[..], FinishReason::Cancelled)),
            _ => assert_eq!((&expected, *reason), (tokens, FinishReason::Length)),
        }
    }
}

#[test]
fn a_slow_reader_loses_nothing_and_stalls_nobody() {
    let client = start(EngineConfig { stream_capacity: 8, ..EngineConfig::default() });
    let (request, expected) = greedy(&[3, 1, 4], 150);
    let slow = client.submit(request).unwrap();
    wait_until("it pauses", || client.stats().paused.get() == 1);
    let generated = client.stats().generated_tokens.get();
    assert!(generated < 16, "{generated} tokens of at most 8 and those on their way");
    let (request, other) = greedy(&[1, 5, 9], 150);
    let fast = client.submit(request).unwrap().collect_tokens();
    assert_eq!(fast, Ok(vec![(other, FinishReason::Length)]));
    assert_eq!(client.stats().paused.get(), 1);
    assert_eq!(slow.collect_tokens(), Ok(vec![(expected, FinishReason::Length)]));
}

#[test]
fn blocks_taken_from_a_stalled_reader_are_no_preemption() {
    let client = start(EngineConfig { stream_capacity: 8, prefix_cache: false, ..EngineConfig::default() });
    let (request, expected) = greedy(&Random::new(1).tokens(170), 25);
    let slow = client.submit(request).unwrap();
    wait_until("it pauses", || client.stats().paused.get() == 1);
    // The cache holds 256 tokens, so the second request needs the blocks of the first.
    let (request, other) = greedy(&Random::new(2).tokens(150), 40);
    let fast = client.submit(request).unwrap().collect_tokens();
    assert_eq!(fast, Ok(vec![(other, FinishReason::Length)]));
    assert_eq!(client.stats().preemptions.get(), 0);
    assert_eq!(slow.collect_tokens(), Ok(vec![(expected, FinishReason::Length)]));
    assert!(client.stats().computed_tokens.get() > 2 * 170 + 150, "the first was computed again");
}

#[test]
fn a_reader_that_stalls_for_too_long_is_cut_off() {
    let stall_timeout = Duration::from_millis(30);
    let client = start(EngineConfig { stream_capacity: 8, stall_timeout, ..EngineConfig::default() });
    let mut stream = client.submit(greedy(&[3, 1, 4], 150).0).unwrap();
    wait_until("it ends", || client.stats().finished_error.get() == 1);
    wait_until("its blocks are back", || client.stats().blocks_in_use.get() == 0);
    let last = stream.by_ref().last();
    assert!(matches!(last, Some(Event::Error(Error::SlowReader { stalled })) if stalled >= stall_timeout));
}

#[test]
fn after_a_failed_step_the_next_request_gets_its_tokens() {
    for (at, overlap) in [(At::Launch, false), (At::Finish, false), (At::Launch, true), (At::Finish, true)] {
        let mut runner = FakeRunner::new(INFO);
        let mut calls = 0;
        runner.fault = Box::new(move |now| {
            calls += usize::from(now == at);
            (now == at && calls == 4).then(|| Error::Device { message: "out of order".into() })
        });
        let client = Engine::start(
            Box::new(runner),
            EngineConfig { overlap: Some(overlap), ..EngineConfig::default() },
        );
        let (request, expected) = greedy(&[1; 9], 20);
        let result = client.submit(request).unwrap().collect_tokens();
        let error = result.unwrap_err();
        assert_eq!(error, Error::Device { message: "out of order".into() });
        assert_eq!(error.fault(), Fault::Internal);
        for _ in 0..2 {
            let (request, _) = greedy(&[1; 9], 20);
            let tokens = client.submit(request).unwrap().collect_tokens().unwrap();
            assert_eq!(tokens, [(expected.clone(), FinishReason::Length)]);
        }
        assert_eq!(client.health(), Health::Ready);
        assert_eq!(client.stats().failed_steps.get(), 1);
    }
}

#[test]
fn a_panic_answers_everyone_and_is_visible() {
    let (permit, permits) = channel::<()>();
    let mut runner = FakeRunner::new(INFO);
    runner.fault = Box::new(move |_| {
        let _ = permits.recv();
        panic!("the device is on fire")
    });
    let client = Engine::start(Box::new(runner), EngineConfig::default());
    let streams: Vec<_> = (0..5).map(|i| client.submit(greedy(&[i; 3], 9).0).unwrap()).collect();
    permit.send(()).unwrap();
    for stream in streams {
        match stream.collect_tokens().unwrap_err() {
            Error::EngineFailed { message } => assert_eq!(message, "the device is on fire"),
            other => panic!("{other}"),
        }
    }
    assert_eq!(client.health(), Health::Failed { message: "the device is on fire".into() });
    let error = client.submit(greedy(&[1], 1).0).map(|_| ()).unwrap_err();
    assert!(matches!(error, Error::EngineFailed { .. }));
}

#[test]
fn a_full_queue_refuses_and_says_when_to_come_back() {
    let (client, permit) = start_gated(EngineConfig { max_seqs: 1, max_queue: 3, ..EngineConfig::default() });
    let first = client.submit(greedy(&[1, 2], 5).0).unwrap();
    wait_until("the first one runs", || {
        client.stats().requests.get() == 1 && client.stats().waiting.get() < 2
    });
    let mut taken = vec![first];
    let error = loop {
        match client.submit(greedy(&[1, 2], 5).0) {
            Ok(stream) => taken.push(stream),
            Err(error) => break error,
        }
    };
    assert!((3..=4).contains(&taken.len()), "{} were taken", taken.len());
    match error {
        Error::Overloaded { queued, retry_after } => {
            assert_eq!(queued, 3);
            assert!(retry_after >= Duration::from_secs(1));
        }
        ref other => panic!("{other}"),
    }
    assert_eq!(error.fault(), Fault::Overload);
    drop(permit); // no more holding back
    for stream in taken {
        assert_eq!(stream.collect_tokens().unwrap()[0].0, greedy(&[1, 2], 5).1);
    }
    assert!(client.submit(greedy(&[1, 2], 5).0).is_ok());
}

#[test]
fn shutdown_finishes_what_runs_and_takes_nothing_new() {
    let client = start(EngineConfig::default());
    let streams: Vec<_> = (0..4).map(|i| client.submit(greedy(&[i; 3], 100).0).unwrap()).collect();
    client.shutdown(Duration::from_secs(20));
    assert_eq!(client.health(), Health::Stopped);
    assert_eq!(client.submit(greedy(&[1], 1).0).map(|_| ()).unwrap_err(), Error::ShuttingDown);
    for (i, stream) in streams.into_iter().enumerate() {
        assert_eq!(stream.collect_tokens().unwrap()[0].0, greedy(&[i as u32; 3], 100).1);
    }
    client.shutdown(Duration::ZERO); // a second time changes nothing
}

#[test]
fn shutdown_ends_the_rest_with_an_error_when_its_time_is_over() {
    let client = start(EngineConfig { stream_capacity: 4, ..EngineConfig::default() });
    let stream = client.submit(greedy(&[1, 2], 150).0).unwrap();
    wait_until("it pauses", || client.stats().paused.get() == 1);
    client.shutdown(Duration::from_millis(20));
    assert_eq!(client.health(), Health::Stopped);
    assert_eq!(stream.collect_tokens(), Err(Error::ShuttingDown));
}

#[test]
fn the_engine_stops_when_nobody_can_ask_for_more() {
    struct Alive(Arc<AtomicBool>);
    impl Drop for Alive {
        fn drop(&mut self) {
            self.0.store(false, Ordering::SeqCst);
        }
    }
    let flag = Arc::new(AtomicBool::new(true));
    let alive = Alive(flag.clone());
    let mut runner = FakeRunner::new(INFO);
    runner.fault = Box::new(move |_| {
        let _ = &alive;
        None
    });
    let client = Engine::start(Box::new(runner), EngineConfig::default());
    let (request, expected) = greedy(&[1, 2], 30);
    let stream = client.submit(request).unwrap();
    drop(client);
    assert_eq!(stream.collect_tokens().unwrap()[0].0, expected);
    wait_until("the runner is dropped", || !flag.load(Ordering::SeqCst));
}

#[test]
fn a_stream_can_be_awaited_without_a_runtime() {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let client = start(EngineConfig { stream_capacity: 4, ..EngineConfig::default() });
    let (request, expected) = greedy(&[8, 8, 8], 100);
    let mut stream = client.submit(request).unwrap();
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut tokens = Vec::new();
    loop {
        let mut next = std::pin::pin!(stream.next_event());
        match next.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(Some(Event::Token { id, .. })) => tokens.push(id),
            Poll::Ready(Some(_)) => {}
            Poll::Ready(None) => break,
            Poll::Pending => std::thread::park_timeout(Duration::from_secs(5)),
        }
    }
    assert_eq!(tokens, expected);
}

#[test]
fn a_grammar_that_fails_ends_only_its_request() {
    struct Broken(TokenMask);
    impl Constraint for Broken {
        fn allowed(&mut self) -> Result<&TokenMask, String> {
            Ok(&self.0)
        }
        fn accept(&mut self, token: u32) -> Result<(), String> {
            Err(format!("token {token} surprises it"))
        }
        fn fork(&self) -> Box<dyn Constraint> {
            Box::new(Broken(self.0.clone()))
        }
    }
    let client = start(EngineConfig::default());
    let run = |mask: TokenMask| {
        let mut request = greedy(&[1, 2, 3], 10).0;
        request.constraint = Some(Box::new(Broken(mask)));
        client.submit(request).unwrap().collect_tokens().unwrap_err()
    };
    let mut mask = TokenMask::none(support::VOCAB_SIZE);
    assert_eq!(run(mask.clone()), Error::Sample(SampleError::NothingAllowed));
    mask.allow(9);
    assert_eq!(run(mask), Error::Constraint { message: "token 9 surprises it".into() });
    assert!(matches!(run(TokenMask::none(5)), Error::Constraint { .. }), "a mask of the wrong size");
    let (request, expected) = greedy(&[1, 2, 3], 10);
    assert_eq!(client.submit(request).unwrap().collect_tokens().unwrap()[0].0, expected);
}

/// A constraint that allows everything, each time only after it was told to.
struct Gated {
    mask: TokenMask,
    gate: Arc<std::sync::Mutex<std::sync::mpsc::Receiver<()>>>,
    waits: bool,
}

impl Constraint for Gated {
    fn allowed(&mut self) -> Result<&TokenMask, String> {
        if std::mem::take(&mut self.waits) {
            self.gate.lock().unwrap().recv().map_err(|_| "the gate is gone".to_owned())?;
        }
        Ok(&self.mask)
    }

    fn accept(&mut self, _token: u32) -> Result<(), String> {
        self.waits = true;
        Ok(())
    }

    fn fork(&self) -> Box<dyn Constraint> {
        let (mask, gate) = (self.mask.clone(), self.gate.clone());
        Box::new(Self { mask, gate, waits: self.waits })
    }
}

fn gated() -> (Box<dyn Constraint>, std::sync::mpsc::Sender<()>) {
    let (open, gate) = std::sync::mpsc::channel();
    let mut mask = TokenMask::none(support::VOCAB_SIZE);
    (0..support::VOCAB_SIZE as u32).for_each(|token| mask.allow(token));
    (Box::new(Gated { mask, gate: Arc::new(std::sync::Mutex::new(gate)), waits: false }), open)
}

#[test]
fn who_waits_for_a_mask_waits_alone() {
    let config = EngineConfig { mask_patience: Duration::from_millis(500), ..EngineConfig::default() };
    let (client, permit) = start_gated(config);
    let constrained = |prompt: &[u32], max_tokens| {
        let (constraint, open) = gated();
        let (mut request, expected) = greedy(prompt, max_tokens);
        request.constraint = Some(constraint);
        (client.submit(request).unwrap(), open, expected)
    };
    let collect = |stream: realizar_engine::Stream| stream.collect_tokens().unwrap()[0].0.clone();
    // Masks that come at once have a thread that the others, which are more than there are threads, cannot take.
    let (mut quick, open, quick_expected) = constrained(&[7, 8], 150);
    (0..200).for_each(|_| open.send(()).unwrap());
    (0..4).for_each(|_| permit.send(()).unwrap());
    let mut quick_tokens = Vec::new();
    while quick_tokens.len() < 3 {
        match quick.recv() {
            Some(Event::Token { id, .. }) => quick_tokens.push(id),
            other => panic!("{other:?}"),
        }
    }
    let late: Vec<_> = (0..12).map(|i| constrained(&[1, 2, i], 10)).collect();
    let (free, free_expected) = greedy(&[4, 5, 6], 10);
    let free = client.submit(free).unwrap();
    (0..10_000).for_each(|_| permit.send(()).unwrap());
    assert_eq!(collect(free), free_expected);
    quick_tokens.extend(collect(quick));
    assert_eq!(quick_tokens, quick_expected);
    // More than they need: who has got all of them is gone.
    for (_, open, _) in &late {
        (0..20).for_each(|_| open.send(()).unwrap_or_default());
    }
    for (stream, _open, expected) in late {
        assert_eq!(collect(stream), expected);
    }
}

#[test]
fn threads_that_are_stuck_at_masks_are_noticed() {
    let client = start(EngineConfig { longest_mask: Duration::from_millis(100), ..EngineConfig::default() });
    // More than there are threads for masks of new sequences.
    let constrained = |i| {
        let (constraint, open) = gated();
        let (mut request, _) = greedy(&[1, 2, i], 2);
        request.constraint = Some(constraint);
        (client.submit(request).unwrap(), open)
    };
    let (streams, gates): (Vec<_>, Vec<_>) = (0..12).map(constrained).unzip();
    let masks = |stuck: Stuck| stuck.part == StuckPart::Masks && stuck.since > Duration::from_millis(100);
    until(|| client.stuck().is_some_and(masks));
    let (request, expected) = greedy(&[1, 2, 3], 10);
    assert_eq!(client.submit(request).unwrap().collect_tokens().unwrap()[0].0, expected);
    for gate in &gates {
        (0..4).for_each(|_| gate.send(()).unwrap_or_default());
    }
    streams.into_iter().for_each(|stream| drop(stream.collect_tokens().unwrap()));
    until(|| client.stuck().is_none());
}

#[test]
fn a_request_that_ends_while_its_mask_is_computed_leaves_nothing_behind() {
    let client = start(EngineConfig::default());
    let (constraint, open) = gated();
    let (mut request, _) = greedy(&[1, 2, 3], 10);
    request.constraint = Some(constraint);
    let mut stream = client.submit(request).unwrap();
    assert!(matches!(stream.recv(), Some(Event::Token { .. })));
    drop(stream);
    let (request, expected) = greedy(&[1, 2, 3], 10);
    assert_eq!(client.submit(request).unwrap().collect_tokens().unwrap()[0].0, expected);
    drop(open);
    client.shutdown(Duration::from_secs(60));
    assert_eq!(client.health(), Health::Stopped);
    assert_eq!(client.stats().blocks_in_use.get(), 0);
}

#[test]
fn a_reader_that_is_slow_but_reads_gets_everything() {
    let config = EngineConfig {
        stream_capacity: 64,
        stall_timeout: Duration::from_millis(1500),
        ..EngineConfig::default()
    };
    let client = start(config);
    let (request, expected) = greedy(&[1, 2, 3], 90);
    let mut stream = client.submit(request).unwrap();
    let mut tokens = Vec::new();
    // Until the engine is told to go on, 32 events are read; that takes longer than its patience.
    while let Some(event) = stream.recv() {
        match event {
            Event::Token { id, .. } => tokens.push(id),
            Event::Finished { .. } => {}
            other => panic!("{other:?} after {} tokens", tokens.len()),
        }
        if tokens.len() < 40 {
            std::thread::sleep(Duration::from_millis(60));
        }
    }
    assert_eq!(tokens, expected);
}

#[test]
fn the_next_turn_of_a_chat_computes_only_what_is_new() {
    let client = start(EngineConfig::default());
    for n_answer in 8..13 {
        let prompt = Random::new(n_answer).tokens(30);
        let (request, answer) = greedy(&prompt, n_answer as usize);
        assert_eq!(client.submit(request).unwrap().collect_tokens().unwrap()[0].0, answer);
        let turn = [&prompt[..], &answer, &[1, 2, 3]].concat();
        let (request, expected) = greedy(&turn, 5);
        let mut events: Vec<Event> = client.submit(request).unwrap().collect();
        let Some(Event::Finished { usage, .. }) = events.pop() else { panic!("{events:?}") };
        // The answer's last token was chosen, and not computed.
        assert_eq!(usage.cached_tokens, 30 + answer.len() - 1);
        assert_eq!(events.len(), expected.len(), "warm equals cold");
        for (event, expected) in events.iter().zip(expected) {
            assert!(matches!(event, Event::Token { id, .. } if *id == expected), "{event:?}");
        }
    }
}

#[test]
fn a_prompt_that_was_read_before_is_found_under_the_same_salt_only() {
    let client = start(EngineConfig::default());
    let prompt = Random::new(12).tokens(30);
    let run = |salt: Option<u64>, tail: u32| {
        let mut case = Case::greedy([&prompt[..], &[tail]].concat(), 12);
        case.params = SamplingParams { seed: Some(3), ..SamplingParams::default() };
        case.cache_salt = salt;
        let mut events: Vec<Event> = client.submit(case.request()).unwrap().collect();
        let Some(Event::Finished { usage, timings, .. }) = events.pop() else { panic!("{events:?}") };
        assert_eq!(timings.first_token, timings.queue + timings.prefill);
        let tokens = events.iter().map(|e| match e {
            Event::Token { id, .. } => *id,
            other => panic!("{other:?}"),
        });
        assert_eq!(tokens.collect::<Vec<_>>(), solo(&case, 0, INFO.max_seq_len()).tokens, "warm equals cold");
        usage.cached_tokens
    };
    assert_eq!(run(None, 1), 0);
    assert_eq!(run(Some(1), 1), 0, "another tenant");
    assert_eq!(run(Some(2), 1), 0);
    // Of 31 tokens, 7 blocks of 4 are whole, and 2 tokens of the next one agree.
    assert_eq!([run(None, 1), run(Some(1), 2), run(Some(2), 1)], [30, 30, 30]);
    let stats = client.stats();
    assert_eq!((stats.cache_hit_tokens.get(), stats.cache_miss_tokens.get()), (90, 6 * 31 - 90));
    // Other texts take the blocks that were unused for longest.
    for seed in 0..8 {
        let case = Case::greedy(Random::new(100 + seed).tokens(40), 1);
        client.submit(case.request()).unwrap().collect_tokens().unwrap();
    }
    assert_eq!(run(None, 1), 0);
    assert!(client.stats().cache_evictions.get() > 0);
}
