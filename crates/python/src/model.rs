//! A model on its device, for Python.

use crate::answer::Answer;
use crate::arguments::{self, Prompt};
use crate::blocking::{block_on, on_a_thread};
use crate::error::{RealizarError, of_library, of_request};
use crate::forked::Owned;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use realizar::hub::{Hub, HubModel, is_path};
use realizar::{Embedder, EncodeOptions, EngineConfig, Error, LoadError, Options};
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// The model in the module: small stories, and questions about them.
static DEMO: &[u8] = include_bytes!("../../../assets/demo.gguf");

/// How an embedder encodes a text.
const AS_EMBEDDED: EncodeOptions = EncodeOptions { add_special: true, parse_special: false };

/// A model that generates text or makes vectors of it.
#[pyclass(frozen, module = "realizar._native")]
pub(crate) struct Model {
    /// `None` once it is closed.
    loaded: Owned<Mutex<Option<Arc<Loaded>>>>,
}

enum Loaded {
    Text(Box<realizar::Model>),
    Embedder(Embedder),
}

impl Loaded {
    /// `name`: a path or a model of the hub; `None`: the demo model.
    fn load(name: Option<&str>, options: &Options) -> Result<Self, PyErr> {
        // Python asks for as many texts at once as it likes.
        let config = EngineConfig { max_queue: usize::MAX, ..EngineConfig::default() };
        let path = name.map(find).transpose()?;
        let source = match &path {
            Some(path) => realizar::open(path),
            None => realizar::open_gguf_bytes("demo", DEMO.into()),
        };
        let source = source.map_err(|error| of_library(&error.into()))?;
        let builder = realizar::Model::builder_from(&*source);
        let loaded = builder.options(options.clone()).engine_config(config).load();
        match (loaded, path) {
            (Ok(model), _) => Ok(Self::Text(Box::new(model))),
            (Err(Error::Load(LoadError::Encoder { .. })), Some(path)) => {
                Embedder::load_with(path, options).map(Self::Embedder).map_err(|error| of_library(&error))
            }
            (Err(error), _) => Err(of_library(&error)),
        }
    }

    /// Errors: `RealizarError` if it makes vectors.
    fn text(&self) -> PyResult<&realizar::Model> {
        match self {
            Self::Text(model) => Ok(model),
            Self::Embedder(_) => {
                Err(RealizarError::new_err("this is an embedding model: it makes vectors and no text"))
            }
        }
    }

    /// Errors: `RealizarError` if it makes text.
    fn embedder(&self) -> PyResult<&Embedder> {
        match self {
            Self::Embedder(embedder) => Ok(embedder),
            Self::Text(model) => Err(RealizarError::new_err(format!(
                "this is not an embedding model ({}): it makes text and no vectors",
                model.config().arch
            ))),
        }
    }
}

/// The path of a model on this machine, downloaded first if a name of the hub is meant.
fn find(name: &str) -> PyResult<PathBuf> {
    if is_path(name) {
        return Ok(Path::new(name).to_owned());
    }
    let model: HubModel = name.parse().map_err(|error| {
        RealizarError::new_err(format!("there is no file {name:?}, and it is no name of the hub's: {error}"))
    })?;
    Hub::from_env().and_then(|hub| hub.get(&model)).map_err(|error| of_library(&error.into()))
}

impl Model {
    /// Errors: it is closed, or was loaded before a fork.
    fn get(&self) -> PyResult<Arc<Loaded>> {
        let loaded = self.loaded.get()?.lock().unwrap_or_else(PoisonError::into_inner);
        loaded.clone().ok_or_else(|| RealizarError::new_err("this LLM is closed"))
    }
}

#[pymethods]
impl Model {
    #[new]
    #[pyo3(signature = (name, **options))]
    fn new(py: Python<'_>, name: Option<String>, options: Option<&Bound<'_, PyDict>>) -> PyResult<Self> {
        let options = arguments::options(options)?;
        let loaded = on_a_thread(py, move || Loaded::load(name.as_deref(), &options))??;
        Ok(Self { loaded: Owned::new(Mutex::new(Some(Arc::new(loaded)))) })
    }

    /// Begins to continue a prompt.
    #[pyo3(signature = (prompt, **params))]
    fn generate(
        &self,
        py: Python<'_>,
        prompt: Prompt,
        params: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Answer> {
        let loaded = self.get()?;
        let model = loaded.text()?;
        let params = arguments::params(model.default_params(), params)?;
        let stream = py.detach(|| model.generate(&prompt, &params)).map_err(|error| of_library(&error))?;
        Ok(Answer::new(stream))
    }

    /// Begins to answer a conversation: a JSON object with `messages` and further variables of the chat template.
    #[pyo3(signature = (conversation, **params))]
    fn chat(
        &self,
        py: Python<'_>,
        conversation: &str,
        params: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Answer> {
        let loaded = self.get()?;
        let model = loaded.text()?;
        let params = arguments::params(model.default_params(), params)?;
        let conversation = serde_json::from_str(conversation)
            .map_err(|error| PyValueError::new_err(format!("the conversation is not JSON: {error}")))?;
        let start = || model.engine().chat(&conversation, realizar::now(), &params);
        Ok(Answer::new(py.detach(start).map_err(|error| of_request(&error))?))
    }

    /// A vector per text.
    fn embed(&self, py: Python<'_>, texts: Vec<String>) -> PyResult<Vec<Vec<f32>>> {
        let loaded = self.get()?;
        let mut vectors = pin!(loaded.embedder()?.embed_async(&texts));
        block_on(py, |cx| vectors.as_mut().poll(cx))?.map_err(|error| of_library(&error))
    }

    /// Token ids of a text.
    fn tokenize(&self, py: Python<'_>, text: &str) -> PyResult<Vec<u32>> {
        let loaded = self.get()?;
        py.detach(|| match &*loaded {
            Loaded::Text(model) => Ok(model.encode(text)),
            Loaded::Embedder(embedder) => Ok(embedder.tokenizer().encode(text, AS_EMBEDDED)),
        })
    }

    /// The text of token ids.
    fn detokenize(&self, py: Python<'_>, tokens: Vec<u32>) -> PyResult<String> {
        let loaded = self.get()?;
        let tokenizer = match &*loaded {
            Loaded::Text(model) => model.tokenizer(),
            Loaded::Embedder(embedder) => embedder.tokenizer(),
        };
        Ok(py.detach(|| tokenizer.decode(&tokens, true)))
    }

    /// Longest sequence, in tokens.
    fn context(&self) -> PyResult<usize> {
        Ok(match &*self.get()? {
            Loaded::Text(model) => model.engine().client().info().max_seq_len(),
            Loaded::Embedder(embedder) => embedder.max_tokens(),
        })
    }

    /// The device in words.
    fn device(&self) -> PyResult<String> {
        Ok(match &*self.get()? {
            Loaded::Text(model) => model.device().to_owned(),
            Loaded::Embedder(embedder) => embedder.device().to_owned(),
        })
    }

    /// Cancels what is under way and frees the device. In a forked process, which has no device, nothing happens.
    fn close(&self, py: Python<'_>) {
        let Ok(loaded) = self.loaded.get() else { return };
        py.detach(|| {
            let loaded = loaded.lock().unwrap_or_else(PoisonError::into_inner).take();
            if let Some(Loaded::Text(model)) = loaded.as_deref() {
                model.shutdown(Duration::ZERO);
            }
        });
    }
}
