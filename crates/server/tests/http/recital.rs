//! A server whose model recites what a larger one would say.

use super::{TestServer, demo_path, text_engine};
use realizar_compute::BatchLimits;
use realizar_engine::sampler::Sampler;
use realizar_engine::{BlockCopy, EngineConfig, Error, Result, Runner, RunnerInfo, Sampled, Step, Ticket};
use realizar_model::source;
use realizar_model::tokenizer::{EncodeOptions, Tokenizer};
use realizar_server::Config;

/// Answers every prompt with the same text and then its end.
struct Recital {
    text: Vec<u32>,
    said: usize,
    /// The step after so many tokens fails.
    fails_after: Option<usize>,
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
        if self.fails_after == Some(self.said) {
            return Err(Error::Device { message: "it was told to fail".into() });
        }
        let mut sampled = Sampled::default();
        for _ in step.batch.seqs.iter().filter(|s| s.n_logits == 1) {
            let mut logits = vec![0.0; self.info.vocab_size];
            logits[self.text[self.said % self.text.len()] as usize] = 100.0;
            self.said += 1;
            sampled.rows.push(self.sampler.sample(&mut logits, step, sampled.rows.len(), &[]));
        }
        self.outcome = Some(sampled);
        Ok(Ticket(0))
    }

    fn finish(&mut self, _: Ticket) -> Result<Sampled> {
        Ok(self.outcome.take().expect("a step is in flight"))
    }
}

/// A server whose model says `text` to everything, one request after the other.
pub(crate) fn reciting(text: &str) -> TestServer {
    reciting_with(text, None, EngineConfig::default(), Config::default())
}

/// A server whose device fails in the middle of its first answer, after so many tokens of `text`.
pub(crate) fn failing_after(text: &str, n_tokens: usize) -> TestServer {
    reciting_with(text, Some(n_tokens), EngineConfig::default(), Config::default())
}

/// A server with these options that says `text`, and whose device fails after `fails_after` tokens, if ever.
pub(crate) fn reciting_with(
    text: &str,
    fails_after: Option<usize>,
    engine: EngineConfig,
    config: Config,
) -> TestServer {
    let source = source::open(&demo_path()).expect("the demo model");
    let tokenizer = Tokenizer::from_source(&*source).expect("a tokenizer");
    let mut ids = tokenizer.encode(text, EncodeOptions { add_special: false, parse_special: false });
    ids.push(tokenizer.eos_ids()[0]);
    let limits = BatchLimits { n_tokens: 512, n_seqs: 4, n_blocks: 1024, n_logits: 4 };
    let info = RunnerInfo {
        vocab_size: tokenizer.vocab_size(),
        n_blocks: 1024,
        block_size: 16,
        context_length: 16_384,
        limits,
        slots: None,
        asynchronous: false,
        drafts: false,
    };
    let runner =
        Recital { text: ids, said: 0, fails_after, info, sampler: Sampler::default(), outcome: None };
    TestServer::around(text_engine(Box::new(runner), engine), config)
}
