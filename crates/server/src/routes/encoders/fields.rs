//! The fields of the endpoints of encoders that clients are known to send, and what is done with each.

use crate::fields::{Field, Neutral, Table};

/// What takes these fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Endpoint {
    /// `/v1/embeddings`
    Embeddings,
    /// `/v1/rerank`
    Rerank,
}

/// The fields of these endpoints.
#[derive(Clone, Debug, Default)]
pub(crate) struct EncoderFields;

impl Table for EncoderFields {
    type Endpoint = Endpoint;

    fn fields() -> &'static [Field<Endpoint>] {
        FIELDS
    }
}

const BOTH: &[Endpoint] = &[Endpoint::Embeddings, Endpoint::Rerank];
const EMBEDDINGS: &[Endpoint] = &[Endpoint::Embeddings];
const RERANK: &[Endpoint] = &[Endpoint::Rerank];

const ONLY_TEXT: &str = "only text is read";
const PROMPTS: &str = "write what the model expects before the text, such as `query: `, into the text";

static FIELDS: &[Field<Endpoint>] = &[
    Field::honoured("model", BOTH, "one of the server's names; may be left out"),
    Field::honoured("input", EMBEDDINGS, "text, texts, token ids or lists of token ids, up to 2,048"),
    Field::honoured("encoding_format", EMBEDDINGS, "`float`, or `base64` of little-endian 32-bit floats"),
    Field::honoured(
        "dimensions",
        EMBEDDINGS,
        "keeps the first numbers of each vector, for models that were trained for it",
    ),
    Field::honoured("query", RERANK, "what the documents are compared with"),
    Field::honoured("documents", RERANK, "texts, or objects with `text`, up to 2,048"),
    Field::honoured(
        "texts",
        RERANK,
        "another name of `documents`; the answer is then a list, as that of Hugging Face's TEI",
    ),
    Field::honoured("top_n", RERANK, "how many of the best are returned; all by default"),
    Field::honoured("return_documents", RERANK, "returns the texts, too"),
    Field::honoured("return_text", RERANK, "with `texts`: returns the texts, too"),
    Field::honoured("raw_scores", RERANK, "with `texts`: scores before the logistic function"),
    Field::honoured("truncate", RERANK, "with `texts`: cuts what is too long"),
    Field::honoured(
        "truncate_prompt_tokens",
        BOTH,
        "keeps the first tokens of a longer text; -1: what the model takes. Without it such a text is refused",
    ),
    //
    Field::no_effect("user", BOTH, "nothing is kept about users"),
    Field::no_effect("priority", BOTH, "texts are computed in the order in which they come"),
    Field::no_effect("request_id", BOTH, "send the header `X-Request-Id`"),
    Field::no_effect("truncation_direction", BOTH, "the beginning of a text is kept"),
    //
    Field::refused("add_special_tokens", EMBEDDINGS, Neutral::Bool(true), "send token ids instead"),
    Field::refused("normalize", EMBEDDINGS, Neutral::Null, "vectors are normalized as the model's files say"),
    Field::refused("embedding_type", EMBEDDINGS, Neutral::Text(&["float"]), "use encoding_format"),
    Field::refused("embedding_types", EMBEDDINGS, Neutral::Only("float"), "use encoding_format"),
    Field::refused("input_type", EMBEDDINGS, Neutral::Null, PROMPTS),
    Field::refused("task", EMBEDDINGS, Neutral::Null, PROMPTS),
    Field::refused("prompt_name", EMBEDDINGS, Neutral::Null, PROMPTS),
    Field::refused("messages", EMBEDDINGS, Neutral::Null, "send texts as input"),
    Field::refused("late_chunking", EMBEDDINGS, Neutral::Bool(false), "each text is computed by itself"),
    Field::refused("images", BOTH, Neutral::Empty, ONLY_TEXT),
    Field::refused("max_tokens_per_doc", RERANK, Neutral::Null, "use truncate_prompt_tokens"),
    Field::refused(
        "max_chunks_per_doc",
        RERANK,
        Neutral::Null,
        "a document is one text; use truncate_prompt_tokens",
    ),
    Field::refused("rank_fields", RERANK, Neutral::Empty, "write what is compared into the text"),
];

#[cfg(test)]
mod tests {
    use super::super::embeddings::EmbeddingRequest;
    use super::super::rerank::RerankRequest;
    use super::*;
    use crate::error::Result;
    use crate::fields::testing;
    use serde_json::{Value, json};

    fn check(endpoint: Endpoint, name: &str, value: &Value) -> Result<()> {
        let mut body = json!({"input": "a", "query": "a", "documents": []});
        body[name] = value.clone();
        match endpoint {
            Endpoint::Embeddings => {
                serde_json::from_value::<EmbeddingRequest>(body).expect("a request").other.check(endpoint)
            }
            Endpoint::Rerank => {
                serde_json::from_value::<RerankRequest>(body).expect("a request").other.check(endpoint)
            }
        }
    }

    #[test]
    fn the_table_is_what_the_types_and_the_documentation_say() {
        testing::refused_by_name::<EncoderFields>(BOTH, check);
        testing::honours::<EncoderFields, EmbeddingRequest>(Endpoint::Embeddings);
        testing::honours::<EncoderFields, RerankRequest>(Endpoint::Rerank);
        testing::is_printed::<EncoderFields>(&[
            (Endpoint::Embeddings, "embeddings"),
            (Endpoint::Rerank, "rerank"),
        ]);
    }

    /// OpenAI's, vLLM's, Jina's, Cohere's and TEI's.
    #[test]
    fn the_fields_of_other_servers_are_listed() {
        let embeddings = "input model dimensions encoding_format user truncate_prompt_tokens add_special_tokens priority \
            request_id normalize task input_type embedding_type embedding_types late_chunking prompt_name messages";
        testing::lists::<EncoderFields>(Endpoint::Embeddings, embeddings);
        let rerank = "model query documents top_n return_documents truncate_prompt_tokens priority max_tokens_per_doc \
            max_chunks_per_doc rank_fields texts raw_scores return_text truncate truncation_direction";
        testing::lists::<EncoderFields>(Endpoint::Rerank, rerank);
    }
}
