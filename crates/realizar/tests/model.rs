//! The library on the demo model: every way to ask for text or probabilities agrees with the others and with the engine.
#![allow(missing_docs)]

use futures_core::Stream;
use realizar::{
    CacheSize, ChatTemplate, Device, Error, FinishReason, GenerateError, LoadError, Message, Model, Ngram,
    Options, SamplingParams, TextEvent, TextParams,
};
use realizar_engine::Request;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn demo_file() -> PathBuf {
    root().join("assets/demo.gguf")
}

/// Loaded once; its results do not depend on what else runs.
fn demo() -> &'static Model {
    static DEMO: OnceLock<Model> = OnceLock::new();
    DEMO.get_or_init(|| {
        Model::builder(demo_file()).device(Device::Cpu).cache(CacheSize::Tokens(8192)).load().unwrap()
    })
}

/// Prompts, their tokens and logits, as the transformers library computes them.
fn golden() -> Value {
    let text = std::fs::read(root().join("crates/model/tests/data/demo_golden.json")).unwrap();
    serde_json::from_slice(&text).unwrap()
}

fn ids(list: &Value) -> Vec<u32> {
    list.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

fn greedy(max_tokens: usize) -> TextParams {
    TextParams { max_tokens: Some(max_tokens), sampling: SamplingParams::greedy(), ..TextParams::default() }
}

fn sampled(seed: u64, max_tokens: usize) -> TextParams {
    let sampling = SamplingParams { seed: Some(seed), ..SamplingParams::default() };
    TextParams { sampling, ..greedy(max_tokens) }
}

fn tokens(completion: &realizar::Completion) -> Vec<u32> {
    completion.tokens.iter().map(|token| token.id).collect()
}

const FOX: &str = "Tell me a story about a fox.";

#[test]
fn a_chat_is_the_request_that_the_engine_gets() {
    let golden = golden();
    let case = golden["cases"].as_array().unwrap().iter().find(|case| case["message"] == FOX).unwrap();
    let messages = [Message::user(FOX)];
    assert_eq!(demo().encode_chat(&messages).unwrap(), ids(&case["prompt_ids"]));

    let answer = demo().chat(&messages, &greedy(40)).unwrap().completion().unwrap();
    let request = Request {
        sampling: SamplingParams::greedy(),
        stop_tokens: demo().tokenizer().eos_ids().to_vec(),
        ..Request::new(ids(&case["prompt_ids"]), 40)
    };
    let choices = demo().engine().client().submit(request).unwrap().collect_tokens().unwrap();
    assert_eq!(choices, [(tokens(&answer), answer.reason)]);
    assert_eq!(answer.text, demo().decode(&tokens(&answer)));
    assert!(answer.text.starts_with("Once upon a time"), "{}", answer.text);
    assert_eq!(answer.usage.prompt_tokens, ids(&case["prompt_ids"]).len());
}

#[test]
fn a_system_prompt_and_earlier_turns_are_part_of_the_prompt() {
    let messages = [
        Message::system("Be brief."),
        Message::user("Hello."),
        Message::assistant("Good day."),
        Message::user(FOX),
    ];
    let prompt = demo().encode_chat(&messages).unwrap();
    let text = demo().tokenizer().decode(&prompt, false);
    let places: Vec<_> = ["system", "Be brief.", "user", "Hello.", "assistant", "Good day.", FOX]
        .iter()
        .map(|part| text.find(part).unwrap_or_else(|| panic!("{part:?} is not in {text:?}")))
        .collect();
    assert!(places.is_sorted(), "{text:?}");
    let answer = demo().chat(&messages, &greedy(8)).unwrap().completion().unwrap();
    let same = demo().generate(&prompt, &greedy(8)).unwrap().completion().unwrap();
    assert_eq!(tokens(&answer), tokens(&same));
}

#[test]
fn a_stream_delivers_the_whole_text() {
    let params = sampled(7, 60);
    let start = || demo().generate("Once upon a time", &params).unwrap();
    let whole = start().completion().unwrap();
    assert!(!whole.text.is_empty());

    let (mut text, mut last) = (String::new(), None);
    for event in start() {
        match event.unwrap() {
            TextEvent::Delta { text: delta, .. } => text += &delta,
            TextEvent::Finished { reason, usage, .. } => last = Some((reason, usage.completion_tokens)),
            TextEvent::Prompt(_) => panic!("nobody asked for the prompt's log-probabilities"),
        }
    }
    assert_eq!(text, whole.text);
    assert_eq!(last, Some((whole.reason, whole.tokens.len())));

    let mut called = String::new();
    start()
        .run(|delta| {
            called += delta;
            true
        })
        .unwrap();
    assert_eq!(called, whole.text);

    assert_eq!(text_of(start()), whole.text);
}

/// What an async stream delivers.
fn text_of(stream: impl Stream<Item = Result<TextEvent, GenerateError>>) -> String {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let (mut stream, mut text) = (pin!(stream), String::new());
    loop {
        match stream.as_mut().poll_next(&mut Context::from_waker(&waker)) {
            Poll::Pending => std::thread::park(),
            Poll::Ready(None) => return text,
            Poll::Ready(Some(event)) => {
                if let TextEvent::Delta { text: delta, .. } = event.unwrap() {
                    text += &delta;
                }
            }
        }
    }
}

#[test]
fn dropping_a_stream_cancels_its_request() {
    // A model of its own, whose counters no other test changes.
    let model = Model::builder(demo_file()).device(Device::Cpu).load().unwrap();
    let stats = model.engine().client().stats();
    let endless = TextParams { max_tokens: None, ignore_eos: true, ..sampled(1, 0) };
    let mut stream = model.generate("Once", &endless).unwrap();
    assert!(stream.next().unwrap().is_ok());
    assert_eq!(stats.finished_cancelled.get(), 0);
    drop(stream);
    let deadline = Instant::now() + Duration::from_secs(60);
    while stats.finished_cancelled.get() == 0 {
        assert!(Instant::now() < deadline, "the request still runs");
        std::thread::sleep(Duration::from_millis(1));
    }

    model.shutdown(Duration::ZERO);
    let refused = model.generate("Once", &greedy(1)).map(drop).unwrap_err();
    assert!(matches!(refused, Error::Generate(GenerateError::ShuttingDown)), "{refused}");
}

#[test]
fn a_callback_that_returns_false_stops() {
    let endless = TextParams { max_tokens: Some(500), ignore_eos: true, ..sampled(1, 0) };
    let mut n = 0;
    let choices = demo()
        .generate("Once", &endless)
        .unwrap()
        .run(|_| {
            n += 1;
            n < 3
        })
        .unwrap();
    assert_eq!((n, choices[0].reason), (3, FinishReason::Cancelled));
}

#[test]
fn a_batch_is_what_each_prompt_gets_alone() {
    let ids = demo().encode("There was a dog");
    let prompts = ["Once upon a time", "The owl said", "In the forest"];
    let batch = prompts.iter().zip(1..).map(|(prompt, seed)| (*prompt, sampled(seed, 20)));
    for ((prompt, seed), result) in prompts.iter().zip(1..).zip(demo().generate_batch(batch)) {
        let alone = demo().generate(*prompt, &sampled(seed, 20)).unwrap().completion().unwrap();
        assert_eq!(result.unwrap().tokens, alone.tokens, "{prompt}");
    }
    let mut results = demo().generate_batch([(&ids[..], greedy(5)), (&[], greedy(5))]).into_iter();
    let alone = demo().generate("There was a dog", &greedy(5)).unwrap().completion().unwrap();
    assert_eq!(results.next().unwrap().unwrap().tokens, alone.tokens);
    assert_eq!(results.next().unwrap().unwrap().text, "");
}

#[test]
fn logits_are_those_of_the_reference() {
    let model = Model::builder(demo_file()).device(Device::Cpu).exact(true).load().unwrap();
    for case in golden()["cases"].as_array().unwrap() {
        let prompt = ids(&case["prompt_ids"]);
        let top5 = case["top5"].as_array().unwrap().last().unwrap();
        let (logits, log_probs) = (model.logits(&prompt).unwrap(), model.log_probs(&prompt).unwrap());
        assert_eq!((logits.len(), log_probs.len()), (model.config().vocab_size, model.config().vocab_size));
        for (id, wanted) in ids(&top5["ids"]).into_iter().zip(top5["logits"].as_array().unwrap()) {
            let wanted = wanted.as_f64().unwrap() as f32;
            assert!((logits[id as usize] - wanted).abs() < 0.02, "{} and {wanted}", logits[id as usize]);
        }
        // Log-probabilities are the logits less one number, and probabilities add up to 1.
        let sum: f64 = logits.iter().map(|&x| f64::from(x).exp()).sum();
        for (logit, log_prob) in logits.iter().zip(&log_probs) {
            assert!((f64::from(*logit) - sum.ln() - f64::from(*log_prob)).abs() < 1e-4);
        }
        let sum: f64 = log_probs.iter().map(|&x| f64::from(x).exp()).sum();
        assert!((sum - 1.0).abs() < 1e-4, "{sum}");
    }
}

#[test]
fn log_probabilities_agree_with_those_of_generated_and_of_given_tokens() {
    let prompt = demo().encode("Once upon a time there was");
    let log_probs = demo().log_probs(&prompt).unwrap();
    let params = TextParams { n_logprobs: Some(3), ..greedy(1) };
    let first = &demo().generate(&prompt, &params).unwrap().completion().unwrap().tokens[0];
    assert_eq!(first.logprob, Some(log_probs[first.id as usize]));
    assert_eq!(first.top_logprobs.len(), 3);
    for &(id, logprob) in &first.top_logprobs {
        assert_eq!(logprob, log_probs[id as usize]);
    }

    let scores = demo().score(&prompt).unwrap();
    assert_eq!(scores.len(), prompt.len() - 1);
    for (i, score) in scores.iter().enumerate() {
        assert_eq!(*score, demo().log_probs(&prompt[..=i]).unwrap()[prompt[i + 1] as usize], "token {i}");
    }
    assert!(demo().score(&prompt[..1]).unwrap().is_empty());
}

#[test]
fn text_and_its_tokens_are_the_same_prompt() {
    let ids = demo().encode("Once upon a time");
    assert_eq!(demo().decode(&ids), "Once upon a time");
    let text = demo().generate("Once upon a time", &greedy(10)).unwrap().completion().unwrap();
    let same = demo().generate(&ids, &greedy(10)).unwrap().completion().unwrap();
    assert_eq!(text.tokens, same.tokens);
}

#[test]
fn threads_share_a_model() {
    fn is_shared<T: Send + Sync>(_: &T) {}
    is_shared(demo());
    let alone = |seed| demo().generate("Once", &sampled(seed, 20)).unwrap().completion().unwrap().tokens;
    let expected: Vec<_> = (0..4).map(alone).collect();
    let together: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|seed| scope.spawn(move || alone(seed))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(together, expected);
}

#[test]
fn options_of_the_builder_hold() {
    let template = ChatTemplate::new("{{ messages[0].content }}", "", "").unwrap();
    let model = Model::builder(demo_file())
        .device(Device::Cpu)
        .context(64)
        .max_seqs(2)
        .threads(1)
        .cache(CacheSize::Tokens(128))
        .chat_template(template)
        .load()
        .unwrap();
    let info = model.engine().client().info();
    assert_eq!((info.max_seq_len(), info.limits.n_seqs, info.cache_tokens()), (64, 2, 128));
    let prompt = model.encode_chat(&[Message::user("Once upon a time")]).unwrap();
    assert_eq!(model.tokenizer().decode(&prompt, true), "Once upon a time");
    // Prompt and answer share the context.
    let all = model.generate("Once", &TextParams { max_tokens: None, ignore_eos: true, ..greedy(0) });
    let all = all.unwrap().completion().unwrap();
    assert_eq!(all.usage.prompt_tokens + all.tokens.len(), 64);
}

#[test]
fn drafts_change_no_text() {
    let messages = [Message::user(FOX)];
    let plain = demo().chat(&messages, &greedy(40)).unwrap().completion().unwrap();
    let builder = || Model::builder(demo_file()).device(Device::Cpu);
    let by_itself = builder().draft_model(demo_file()).load().unwrap();
    let by_ngrams = builder().proposer(Box::new(Ngram::default())).load().unwrap();
    for model in [&by_itself, &by_ngrams] {
        let params = TextParams { speculate: Some(true), ..greedy(40) };
        let drafted = model.chat(&messages, &params).unwrap().completion().unwrap();
        assert_eq!(drafted.tokens, plain.tokens);
    }
}

fn error<T>(result: Result<T, Error>) -> Error {
    result.map(drop).unwrap_err()
}

#[test]
fn what_cannot_be_loaded_is_an_error() {
    let missing = error(Model::load("no/such/model.gguf"));
    assert!(matches!(missing, Error::Load(LoadError::Model(_))), "{missing}");
    assert!(missing.to_string().contains("model.gguf"), "{missing}");

    for nothing in [Model::builder(demo_file()).max_seqs(0), Model::builder(demo_file()).context(0)] {
        let nothing = error(nothing.device(Device::Cpu).load());
        assert!(matches!(nothing, Error::Load(LoadError::Option { .. })), "{nothing}");
    }

    let data = root().join("crates/model/tests/data");
    let encoder = error(Model::builder(data.join("encoders/bert/model.gguf")).device(Device::Cpu).load());
    assert!(matches!(encoder, Error::Load(LoadError::Encoder { .. })), "{encoder}");

    let other = data.join("tokenizers/gpt2.gguf");
    let draft = error(Model::builder(demo_file()).device(Device::Cpu).draft_model(other).load());
    assert!(matches!(draft, Error::Load(LoadError::Vocabulary { .. })), "{draft}");
}

#[test]
fn what_cannot_be_generated_is_an_error() {
    let model = Model::builder(demo_file()).device(Device::Cpu).context(32).load().unwrap();
    let is_too_long = |e: Error| matches!(e, Error::Generate(GenerateError::PromptTooLong { .. }));
    let long = "word ".repeat(100);
    assert!(is_too_long(error(model.generate(&long, &greedy(1)))));
    assert!(is_too_long(error(model.chat(&[Message::user(&long)], &greedy(1)))));
    assert!(is_too_long(error(model.score(&long))));
    // A prompt that fills the context leaves no room for the token behind it.
    assert!(is_too_long(error(model.log_probs(&[300; 32]))));
    assert_eq!(model.score(&[300; 32]).unwrap().len(), 31);
    let mut results = model.generate_batch([(&long, greedy(1))]);
    assert!(is_too_long(error(results.remove(0))));

    let empty = error(model.generate(&[], &greedy(1)));
    assert!(matches!(empty, Error::Generate(GenerateError::EmptyPrompt)), "{empty}");
    let unknown = error(model.generate(&[u32::MAX], &greedy(1)));
    assert!(matches!(unknown, Error::Generate(GenerateError::UnknownToken { .. })), "{unknown}");
    let mut params = greedy(1);
    params.sampling.temperature = -1.0;
    let invalid = error(model.generate("Once", &params));
    assert!(matches!(invalid, Error::Generate(GenerateError::InvalidParam { .. })), "{invalid}");
}

#[test]
fn a_models_own_drafting_layer_is_used_unless_that_is_not_wanted() {
    let file = root().join("crates/model/tests/data/arch/qwen35/model.gguf");
    let builder = || Model::builder(&file).device(Device::Cpu);
    let drafts =
        |builder: realizar::ModelBuilder<'_>| builder.load().unwrap().engine().client().info().drafts;
    assert!(drafts(builder()));
    assert!(!drafts(builder().without_drafts()));
    assert!(!drafts(builder().proposer(Box::<realizar::Ngram>::default())));
    // Other options mean what they say.
    let options = |draft_layer| Options { device: Device::Cpu, draft_layer, ..Options::default() };
    assert!(drafts(Model::builder(&file).options(options(true))));
    assert!(!drafts(Model::builder(&file).options(options(false))));
}
