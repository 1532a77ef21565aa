//! Similarity of texts: `cargo run --release -p realizar --example embed -- MODEL [TEXT…]`, with an embedding model.
#![allow(clippy::print_stdout)]

use realizar::Embedder;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let embedder = Embedder::load(args.next().ok_or("usage: embed MODEL [TEXT…]")?)?;
    let mut texts: Vec<String> = args.collect();
    if texts.is_empty() {
        texts = ["A fox is in the forest.", "An animal walks among trees.", "Interest rates rise."]
            .map(String::from)
            .into();
    }
    let vectors = embedder.embed(&texts)?;
    println!("{} vectors of {} numbers", vectors.len(), embedder.dimensions());
    for (text, vector) in texts.iter().zip(&vectors) {
        println!("{:6.3} {text}", cosine(&vectors[0], vector));
    }
    Ok(())
}

fn cosine(a: &[f32], b: &[f32]) -> f32 {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(x, y)| x * y).sum::<f32>();
    dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
}
