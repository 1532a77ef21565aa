//! Token ids and their probabilities: `cargo run --release -p realizar --example tokens -- [MODEL]`.
#![allow(clippy::print_stdout)]

use realizar::{Model, SamplingParams, TextParams};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let demo = || concat!(env!("CARGO_MANIFEST_DIR"), "/../../assets/demo.gguf").to_owned();
    let model = Model::load(std::env::args().nth(1).unwrap_or_else(demo))?;
    let text = "Once upon a time there was a little";
    let tokens = model.encode(text);
    println!("{text:?} is {tokens:?}");

    let scores = model.score(&tokens)?;
    let mean = scores.iter().sum::<f32>() / scores.len() as f32;
    println!("perplexity {:.2}", (-mean).exp());

    let log_probs = model.log_probs(&tokens)?;
    let mut likely: Vec<u32> = (0..log_probs.len() as u32).collect();
    likely.sort_by(|&a, &b| log_probs[b as usize].total_cmp(&log_probs[a as usize]));
    println!("the likeliest next tokens of {}:", log_probs.len());
    for id in &likely[..5] {
        println!("{:6.2} % {:?}", log_probs[*id as usize].exp() * 100.0, model.decode(&[*id]));
    }

    let params = TextParams {
        max_tokens: Some(8),
        sampling: SamplingParams::greedy(),
        n_logprobs: Some(2),
        ..TextParams::default()
    };
    println!("a greedy continuation, with the two likeliest tokens in each place:");
    for token in model.generate(&tokens, &params)?.completion()?.tokens {
        println!("{:?} {:?}", model.decode(&[token.id]), token.top_logprobs);
    }
    Ok(())
}
