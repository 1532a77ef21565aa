//! Values for some of the parameters, as a request or a model's files give them.

use super::{InvalidParam, PARAMS, Param, SamplingParams};
use std::collections::BTreeMap;

/// Values for some of the parameters of [`PARAMS`]; the others stay as they are.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SamplingOverrides {
    values: BTreeMap<&'static str, f32>,
}

impl SamplingOverrides {
    /// Gives a parameter a value; its range is not checked here. Panics if no parameter has this name.
    pub fn set(&mut self, name: &str, value: f32) {
        let param = Param::find(name).unwrap_or_else(|| panic!("{name} is not a sampling parameter"));
        self.values.insert(param.name, value);
    }

    /// The value of a parameter, if it has one here.
    pub fn get(&self, name: &str) -> Option<f32> {
        self.values.get(name).copied()
    }

    /// These values, and those of `others` for parameters that have none here.
    pub fn or(mut self, others: &Self) -> Self {
        for (&name, &value) in &others.values {
            self.values.entry(name).or_insert(value);
        }
        self
    }

    /// `defaults` with these values in their places.
    ///
    /// Errors: a value outside its parameter's range, here or in `defaults`.
    pub fn over(&self, defaults: SamplingParams) -> Result<SamplingParams, InvalidParam> {
        let mut params = defaults;
        for param in PARAMS {
            if let Some(value) = self.get(param.name) {
                param.check(value)?;
                (param.set)(&mut params, value);
            }
        }
        params.validate()?;
        Ok(params)
    }
}
