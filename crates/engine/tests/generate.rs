//! Text through the engine: detokenizing, stop strings, callbacks and batches, with the demo model's tokenizer.
//!
//! Method: a runner that recites a text whatever it is asked, so that the expected output is known; then the demo model itself.

use realizar_compute::BatchLimits;
use realizar_engine::load::{CacheSize, Device, LoadOptions, load};
use realizar_engine::sampler::Sampler;
use realizar_engine::{
    BlockCopy, Engine, EngineConfig, Error, FinishReason, Result, Runner, RunnerInfo, Sampled,
    SamplingParams, Step, TextEngine, TextEvent, TextParams, Ticket,
};
use realizar_model::chat_template::{self, Timestamp};
use realizar_model::source::{self, TensorSource};
use realizar_model::tokenizer::{EncodeOptions, Tokenizer};
use serde_json::json;
use std::path::Path;
use std::sync::Arc;

/// Continues every prompt of `n_prompt` tokens with the same text, one token after the other, for ever from its beginning.
struct Recital {
    text: Vec<u32>,
    n_prompt: usize,
    info: RunnerInfo,
    sampler: Sampler,
    outcome: Option<Sampled>,
}

impl Runner for Recital {
    fn info(&self) -> RunnerInfo {
        self.info
    }

    fn copy_blocks(&mut self, _: &[BlockCopy]) -> Result<()> {
        Ok(())
    }

    fn launch(&mut self, step: &Step) -> Result<Ticket> {
        let mut sampled = Sampled::default();
        for s in step.batch.seqs.iter().filter(|s| s.n_logits == 1) {
            let next = s.start + s.tokens.len() - self.n_prompt;
            let mut logits = vec![0.0; self.info.vocab_size];
            logits[self.text[next % self.text.len()] as usize] = 1.0;
            sampled.rows.push(self.sampler.sample(&mut logits, step, sampled.rows.len(), &[]));
        }
        self.outcome = Some(sampled);
        Ok(Ticket(0))
    }

    fn finish(&mut self, _: Ticket) -> Result<Sampled> {
        Ok(self.outcome.take().expect("a step is in flight"))
    }
}

fn demo() -> Box<dyn TensorSource> {
    source::open(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../assets/demo.gguf")).unwrap()
}

fn tokens(tokenizer: &Tokenizer, text: &str) -> Vec<u32> {
    tokenizer.encode(text, EncodeOptions { add_special: false, parse_special: false })
}

/// An engine that recites these tokens to prompts of three tokens.
fn reciting(text: Vec<u32>, tokenizer: &Arc<Tokenizer>) -> TextEngine {
    let limits = BatchLimits { n_tokens: 64, n_seqs: 8, n_blocks: 1000, n_logits: 8 };
    let info = RunnerInfo {
        vocab_size: tokenizer.vocab_size(),
        n_blocks: 64,
        block_size: 16,
        context_length: 512,
        limits,
        slots: None,
        asynchronous: false,
        drafts: false,
    };
    let runner = Recital { text, n_prompt: 3, info, sampler: Sampler::new(), outcome: None };
    let config = EngineConfig { max_queue: 4, stream_capacity: 4, ..EngineConfig::default() };
    TextEngine::new(Engine::start(Box::new(runner), config), tokenizer.clone(), None)
}

const PROMPT: [u32; 3] = [300, 301, 302];
const TEXT: &str = "The owl said: “naïve 日本 🦉!” Then END came, and the story went on.";

fn params(max_tokens: usize, stop: &[&str]) -> TextParams {
    TextParams {
        max_tokens: Some(max_tokens),
        sampling: SamplingParams::greedy(),
        stop: stop.iter().map(|s| s.to_string()).collect(),
        ..TextParams::default()
    }
}

#[test]
fn deltas_are_whole_characters_and_together_the_whole_text() {
    let tokenizer = Arc::new(Tokenizer::from_source(&*demo()).unwrap());
    let ids = tokens(&tokenizer, TEXT);
    let engine = reciting(ids.clone(), &tokenizer);
    for n in 0..=ids.len() {
        let params = params(n, &[]);
        let stream = engine.submit(engine.request(PROMPT.to_vec(), &params), &[]).unwrap();
        let mut text = String::new();
        let completion = stream
            .run(|delta| {
                text += delta;
                true
            })
            .unwrap()
            .remove(0);
        let expected = tokenizer.decode(&ids[..n], true);
        assert_eq!(completion.text, expected);
        // What only the end made certain comes with the last delta.
        assert_eq!(text, expected);
        assert_eq!(completion.tokens.iter().map(|t| t.id).collect::<Vec<_>>(), ids[..n]);
        assert_eq!(completion.reason, FinishReason::Length);
        assert_eq!(completion.usage.completion_tokens, n);
        assert_eq!(completion.usage.prompt_tokens, 3);
    }
    assert_eq!(tokenizer.decode(&ids, true), TEXT);
}

#[test]
fn stop_strings_cut_exactly_wherever_tokens_end() {
    let tokenizer = Arc::new(Tokenizer::from_source(&*demo()).unwrap());
    let engine = reciting(tokens(&tokenizer, TEXT), &tokenizer);
    let starts: Vec<usize> = TEXT.char_indices().map(|(i, _)| i).collect();
    for (i, &start) in starts.iter().enumerate() {
        for len in [1, 3, 7] {
            let end = starts.get(i + len).copied().unwrap_or(TEXT.len());
            let stop = &TEXT[start..end];
            let params = params(200, &[stop, "not in the text"]);
            let stream = engine.submit(engine.request(PROMPT.to_vec(), &params), &params.stop).unwrap();
            let mut streamed = String::new();
            let completion = stream
                .run(|delta| {
                    streamed += delta;
                    true
                })
                .unwrap()
                .remove(0);
            assert_eq!(completion.text, TEXT[..TEXT.find(stop).unwrap()], "before {stop:?}");
            assert_eq!(streamed, completion.text);
            assert_eq!(completion.reason, FinishReason::Stop { token: None });
            assert_eq!(completion.stop.as_deref(), Some(stop));
            assert_eq!(completion.usage.completion_tokens, completion.tokens.len());
        }
    }
    let empty = engine.submit(engine.request(PROMPT.to_vec(), &params(5, &[])), &[String::new()]);
    assert!(matches!(empty.map(|_| ()), Err(Error::EmptyStop)));
}

#[test]
fn what_ends_a_text_may_be_part_of_it() {
    let tokenizer = Arc::new(Tokenizer::from_source(&*demo()).unwrap());
    let ids = tokens(&tokenizer, TEXT);
    let engine = reciting(ids.clone(), &tokenizer);
    let run = |params: &TextParams| {
        let stream = engine.submit(engine.request(PROMPT.to_vec(), params), &params.stop).unwrap();
        stream.including_stops().run(|_| true).unwrap().remove(0)
    };
    let completion = run(&params(200, &["END"]));
    assert_eq!(completion.text, TEXT[..TEXT.find("END").unwrap() + 3]);
    assert_eq!(completion.stop.as_deref(), Some("END"));
    // A token of text that ends it.
    let mut request = engine.request(PROMPT.to_vec(), &params(200, &[]));
    request.stop_tokens.push(ids[2]);
    let n = ids.iter().position(|&id| id == ids[2]).unwrap();
    let completion = engine.submit(request, &[]).unwrap().including_stops().run(|_| true).unwrap().remove(0);
    assert_eq!(completion.text, tokenizer.decode(&ids[..=n], true));
    assert_eq!(completion.reason, FinishReason::Stop { token: Some(ids[2]) });
}

#[test]
fn stop_strings_may_count_only_after_some_tokens() {
    let tokenizer = Arc::new(Tokenizer::from_source(&*demo()).unwrap());
    let ids = tokens(&tokenizer, "one END two END three");
    let engine = reciting(ids.clone(), &tokenizer);
    let run = |n_exempt| {
        let params = params(200, &["END"]);
        let stream = engine.submit(engine.request(PROMPT.to_vec(), &params), &params.stop).unwrap();
        stream.stopping_after(n_exempt).run(|_| true).unwrap().remove(0).text
    };
    assert_eq!(run(0), "one ");
    let n_first = (1..ids.len()).find(|&n| tokenizer.decode(&ids[..n], true).contains("END")).unwrap();
    assert_eq!(run(n_first), "one END two ");
}

#[test]
fn a_rendered_conversation_begins_with_bos_once_if_the_tokenizer_asks_for_it() {
    let vocab = json!({"<s>": 0, "a": 1, "b": 2});
    let added = json!([{"id": 0, "content": "<s>", "special": true, "single_word": false, "lstrip": false,
        "rstrip": false, "normalized": false}]);
    let json = json!({"version": "1.0", "added_tokens": added,
        "model": {"type": "BPE", "vocab": vocab, "merges": []}});
    let encode = |add_bos: bool, text: &str| {
        let config = json!({"bos_token": "<s>", "add_bos_token": add_bos}).to_string();
        let tokenizer =
            Tokenizer::from_hf(json.to_string().as_bytes(), Some(config.as_bytes()), None).unwrap();
        reciting(vec![1], &Arc::new(tokenizer)).encode_rendered(text)
    };
    assert_eq!(encode(true, "ab"), [0, 1, 2]);
    assert_eq!(encode(true, "<s>ab"), [0, 1, 2]);
    assert_eq!(encode(false, "ab"), [1, 2]);
    assert_eq!(encode(false, "<s>ab"), [0, 1, 2]);
}

#[test]
fn stop_tokens_are_never_emitted_not_even_as_the_first() {
    let tokenizer = Arc::new(Tokenizer::from_source(&*demo()).unwrap());
    let end = tokenizer.eos_ids()[0];
    for text in ["", "Once", "Once upon a time"] {
        let mut ids = tokens(&tokenizer, text);
        ids.push(end);
        let engine = reciting(ids.clone(), &tokenizer);
        let run = |params: &TextParams| {
            let stream = engine.submit(engine.request(PROMPT.to_vec(), params), &params.stop).unwrap();
            stream.run(|_| true).unwrap().remove(0)
        };
        let completion = run(&params(50, &[]));
        assert_eq!(completion.text, text);
        assert_eq!(completion.tokens.len(), ids.len() - 1);
        assert_eq!(completion.reason, FinishReason::Stop { token: Some(end) });
        let forever = run(&TextParams { ignore_eos: true, ..params(50, &[]) });
        assert_eq!((forever.tokens.len(), forever.reason), (50, FinishReason::Length));
    }
}

#[test]
fn a_callback_that_says_no_is_not_called_again() {
    let tokenizer = Arc::new(Tokenizer::from_source(&*demo()).unwrap());
    let engine = reciting(tokens(&tokenizer, TEXT), &tokenizer);
    let mut calls = 0;
    let stream = engine.submit(engine.request(PROMPT.to_vec(), &params(400, &[])), &[]).unwrap();
    let completion = stream
        .run(|_| {
            calls += 1;
            calls < 3
        })
        .unwrap()
        .remove(0);
    assert_eq!(calls, 3);
    assert_eq!(completion.reason, FinishReason::Cancelled);
    assert_eq!(completion.usage.completion_tokens, completion.tokens.len());
    assert!(TEXT.starts_with(&completion.text) && completion.tokens.len() < 10);
}

#[test]
fn empty_prompts_and_missing_templates_are_clear() {
    let tokenizer = Arc::new(Tokenizer::from_source(&*demo()).unwrap());
    let engine = reciting(tokens(&tokenizer, TEXT), &tokenizer);
    let error = engine.submit(engine.request(vec![], &params(5, &[])), &[]).map(|_| ()).unwrap_err();
    assert_eq!(error, Error::EmptyPrompt);
    let conversation = json!({ "messages": [] });
    let now = Timestamp::from_unix(0, 0);
    assert_eq!(
        engine.chat(&conversation, now, &params(5, &[])).map(|_| ()).unwrap_err(),
        Error::NoChatTemplate
    );
    // More prompts than the queue takes, one of them empty, one too long.
    let mut prompts: Vec<_> = (0..20).map(|n| (PROMPT.to_vec(), params(n * 3, &["END"]))).collect();
    prompts[4].0.clear();
    prompts[7].0 = vec![1; 600];
    let results = engine.generate_batch(&prompts);
    let before_end = TEXT.find("END").unwrap();
    for (n, result) in results.into_iter().enumerate() {
        match n {
            7 => assert!(matches!(result, Err(Error::PromptTooLong { n_prompt: 600, limit: 512, .. }))),
            4 => assert_eq!((result.unwrap().text.as_str(), n), ("", 4)),
            _ => {
                let ids = tokens(&tokenizer, TEXT);
                let whole = tokenizer.decode(&ids[..(n * 3).min(ids.len())], true);
                let expected = if whole.contains("END") { &TEXT[..before_end] } else { whole.as_str() };
                assert_eq!(result.unwrap().text, expected);
            }
        }
    }
}

fn demo_engine() -> TextEngine {
    let source = demo();
    let options = LoadOptions {
        device: Device::Cpu,
        n_ctx: Some(256),
        cache: CacheSize::Tokens(2048),
        exact: true,
        ..LoadOptions::default()
    };
    let loaded = load(&*source, &options).unwrap();
    let tokenizer = Arc::new(Tokenizer::from_source(&*source).unwrap());
    let template = chat_template::from_gguf(source.metadata(), &tokenizer, None).unwrap();
    TextEngine::new(Engine::start(loaded.runner, EngineConfig::default()), tokenizer, template)
}

#[test]
fn a_batch_on_the_demo_model_equals_its_solo_runs() {
    let engine = demo_engine();
    let texts = [
        "Once upon a time",
        "The owl",
        "A story about a brave fox and two friends.",
        "x",
        "Question: how many",
    ];
    let prompts: Vec<_> = (0..15)
        .map(|i| {
            let sampling = match i % 3 {
                0 => SamplingParams::greedy(),
                _ => SamplingParams {
                    seed: Some(i as u64),
                    top_k: 40,
                    top_p: 0.95,
                    ..SamplingParams::default()
                },
            };
            let params = TextParams { max_tokens: Some(4 + i * 2), sampling, ..TextParams::default() };
            (engine.encode_prompt(texts[i % texts.len()]), params)
        })
        .collect();
    let together = engine.generate_batch(&prompts);
    for (prompt, together) in prompts.into_iter().zip(together) {
        let together = together.unwrap();
        let alone = engine.generate_batch(&[prompt]).remove(0).unwrap();
        assert_eq!(
            (alone.text, alone.tokens, alone.reason),
            (together.text, together.tokens, together.reason)
        );
    }
}

#[test]
fn the_demo_model_chats_and_a_second_turn_reuses_the_first() {
    let engine = demo_engine();
    let user =
        // More than one block of tokens, so that a whole one can be reused.
        "Tell me a long story about a brave owl with two friends who live in the old forest by the river. \
         The owl is called Mia. Please make it a happy story, and tell me what everybody said in the end.";
    let mut messages = vec![json!({ "role": "user", "content": user })];
    let now = Timestamp::from_unix(0, 0);
    let params =
        TextParams { max_tokens: Some(60), sampling: SamplingParams::greedy(), ..TextParams::default() };
    let conversation = json!({ "messages": messages });
    let stream = engine.chat(&conversation, now, &params).unwrap();
    let events: Vec<TextEvent> = stream.map(|e| e.unwrap()).collect();
    assert!(matches!(events.last(), Some(TextEvent::Finished { .. })));
    let answer = engine.chat(&conversation, now, &params).unwrap().run(|_| true).unwrap().remove(0);
    let streamed: String = events
        .iter()
        .filter_map(|e| if let TextEvent::Delta { text, .. } = e { Some(&**text) } else { None })
        .collect();
    assert_eq!(streamed, answer.text, "warm output equals cold output");
    assert!(!answer.text.is_empty());
    assert!(answer.usage.cached_tokens > 0, "{:?}", answer.usage);
    messages.push(json!({ "role": "assistant", "content": answer.text }));
    messages.push(json!({ "role": "user", "content": "And then?" }));
    let second =
        engine.chat(&json!({ "messages": messages }), now, &params).unwrap().run(|_| true).unwrap().remove(0);
    // All but the last token of the answer, which was never computed, whether it fills a block or not.
    let first = answer.usage.prompt_tokens + answer.usage.completion_tokens;
    assert!(second.usage.cached_tokens >= answer.usage.prompt_tokens, "{first}: {:?}", second.usage);
    assert!(second.timings.first_token >= second.timings.prefill);
}
