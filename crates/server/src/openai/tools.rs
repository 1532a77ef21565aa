//! Tools as chat requests describe them: functions, custom tools, whose input is free text, and the older `functions`.

use super::ChatRequest;
use crate::error::{ApiError, Result};
use crate::tool_calls::{Callable, Function, Tool, ToolChoice, ToolKind, check_tools};
use serde::Deserialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

/// A tool that the model may call.
#[derive(Clone, Debug, Deserialize, ToSchema)]
pub(crate) struct ToolField {
    /// What kind of tool it is.
    #[serde(rename = "type")]
    kind: ToolFieldKind,
    /// Of a function.
    #[serde(default)]
    function: Option<Function>,
    /// Of a custom tool.
    #[serde(default)]
    custom: Option<CustomTool>,
}

/// Kinds of tools.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
enum ToolFieldKind {
    /// A function of the client's, called with JSON.
    Function,
    /// A tool of the client's, called with free text.
    Custom,
}

/// A tool that is called with free text.
#[derive(Clone, Debug, Deserialize, ToSchema)]
pub(crate) struct CustomTool {
    /// Letters, digits, `_`, `-` and `.`, at most 64.
    name: String,
    /// When and how to call it.
    #[serde(default)]
    description: Option<String>,
    /// What its input looks like. Default: any text.
    #[serde(default)]
    format: Option<CustomFormat>,
}

/// What the input of a custom tool looks like.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
enum CustomFormat {
    /// Any text.
    Text,
    /// Text of a grammar.
    Grammar {
        /// The grammar.
        grammar: CustomGrammar,
    },
}

/// The grammar of a custom tool's input.
#[derive(Clone, Debug, Deserialize, ToSchema)]
struct CustomGrammar {
    /// Only `regex` can be enforced.
    syntax: String,
    /// The grammar itself.
    definition: String,
}

/// Whether the model has to call a tool, and which.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "Value")]
pub(crate) enum ToolChoiceField {
    /// Of all tools.
    Of(ToolChoice),
    /// Of the tools with these names.
    Allowed {
        /// Whether there has to be a call.
        required: bool,
        names: Vec<String>,
    },
}

impl TryFrom<Value> for ToolChoiceField {
    type Error = String;

    fn try_from(value: Value) -> std::result::Result<Self, String> {
        let text = |pointer: &str| value.pointer(pointer).and_then(Value::as_str);
        match text("/type") {
            Some("custom") => match text("/custom/name") {
                Some(name) => Ok(Self::Of(ToolChoice::Named(name.to_owned()))),
                None => Err("a tool_choice of type custom has a custom.name".to_owned()),
            },
            Some("allowed_tools") => {
                let required = match text("/allowed_tools/mode") {
                    Some("auto") => false,
                    Some("required") => true,
                    _ => return Err("allowed_tools.mode is auto or required".to_owned()),
                };
                let name = |tool: &Value| {
                    let name = tool.pointer("/function/name").or(tool.pointer("/custom/name"));
                    name.and_then(Value::as_str).map(str::to_owned)
                };
                let tools = value.pointer("/allowed_tools/tools").and_then(Value::as_array);
                match tools.and_then(|tools| tools.iter().map(name).collect()) {
                    Some(names) => Ok(Self::Allowed { required, names }),
                    None => Err("allowed_tools.tools is a list of tools with their names".to_owned()),
                }
            }
            _ => ToolChoice::try_from(value).map(Self::Of),
        }
    }
}

/// The older form of a tool choice.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(untagged, expecting = "expected none, auto or an object with the function's name")]
pub(crate) enum FunctionChoice {
    Mode(String),
    Named { name: String },
}

/// What the model may call, in whatever form the request says it.
#[derive(Clone, Debug, Default)]
pub(crate) struct RequestTools {
    pub(crate) callable: Callable,
    /// Names of the tools whose calls carry free text.
    pub(crate) custom: Vec<String>,
    /// The request has the older form, and so has the answer.
    pub(crate) is_legacy: bool,
}

impl ChatRequest {
    /// What the model may call, and whether it has to.
    ///
    /// Errors: names that cannot be, a choice that is not among them, an input format that cannot be enforced.
    pub(crate) fn request_tools(&self) -> Result<RequestTools> {
        let tools = match (&self.functions, &self.function_call) {
            (None, None) => self.current_tools()?,
            _ if self.tools.is_some() || self.tool_choice.is_some() => {
                let message = "functions and function_call are the older form of tools and tool_choice; \
                    they cannot be combined";
                return Err(ApiError::invalid_param("functions", message));
            }
            (functions, choice) => older_tools(functions.as_deref().unwrap_or_default(), choice.as_ref())?,
        };
        let older = |place: String| match tools.is_legacy {
            true if place.starts_with("tool_choice") => "function_call".to_owned(),
            true => place.replace("tools/", "functions/").replace("/function/name", "/name"),
            false => place,
        };
        check_tools(&tools.callable.tools, &tools.callable.choice)
            .map_err(|(place, message)| ApiError::invalid_param(older(place), message))?;
        Ok(tools)
    }

    fn current_tools(&self) -> Result<RequestTools> {
        let mut custom_names = Vec::new();
        let mut callable =
            Callable { parallel: self.parallel_tool_calls.unwrap_or(true), ..Callable::default() };
        for (i, field) in self.tools.iter().flatten().enumerate() {
            let tool = match (field.kind, &field.function, &field.custom) {
                (ToolFieldKind::Function, Some(function), _) => function.clone(),
                (ToolFieldKind::Custom, _, Some(custom)) => {
                    custom_names.push(custom.name.clone());
                    custom.as_function(i)?
                }
                (ToolFieldKind::Function, None, _) => return Err(lacks(i, "function")),
                (ToolFieldKind::Custom, _, None) => return Err(lacks(i, "custom")),
            };
            callable.tools.push(Tool { kind: ToolKind::Function, function: tool });
        }
        match &self.tool_choice {
            None => {}
            Some(ToolChoiceField::Of(choice)) => callable.choice = choice.clone(),
            Some(ToolChoiceField::Allowed { required, names }) => {
                let tools = &mut callable.tools;
                if let Some(name) = names.iter().find(|n| tools.iter().all(|t| t.function.name != **n)) {
                    let message = format!("there is no tool of the name {name:?}");
                    return Err(ApiError::invalid_param("tool_choice/allowed_tools/tools", message));
                }
                tools.retain(|tool| names.contains(&tool.function.name));
                callable.choice = if *required { ToolChoice::Required } else { ToolChoice::Auto };
            }
        }
        Ok(RequestTools { callable, custom: custom_names, is_legacy: false })
    }
}

fn lacks(i: usize, field: &str) -> ApiError {
    ApiError::invalid_param(format!("tools[{i}]"), format!("tools[{i}] has no {field}"))
}

fn older_tools(functions: &[Function], choice: Option<&FunctionChoice>) -> Result<RequestTools> {
    let choice = match choice {
        None => ToolChoice::Auto,
        Some(FunctionChoice::Named { name }) => ToolChoice::Named(name.clone()),
        Some(FunctionChoice::Mode(mode)) if mode == "auto" => ToolChoice::Auto,
        Some(FunctionChoice::Mode(mode)) if mode == "none" => ToolChoice::None,
        Some(FunctionChoice::Mode(mode)) => {
            let message = format!("function_call is {mode:?} but must be none, auto or a function");
            return Err(ApiError::invalid_param("function_call", message));
        }
    };
    let tools = functions.iter().map(|f| Tool { kind: ToolKind::Function, function: f.clone() }).collect();
    let callable = Callable { tools, choice, parallel: false };
    Ok(RequestTools { callable, custom: Vec::new(), is_legacy: true })
}

impl CustomTool {
    /// The tool as a function of one text, which every model can call.
    fn as_function(&self, i: usize) -> Result<Function> {
        let mut input =
            json!({"type": "string", "description": "The whole input of the tool, as free text."});
        let mut strict = None;
        if let Some(CustomFormat::Grammar { grammar }) = &self.format {
            if grammar.syntax != "regex" {
                let place = format!("tools[{i}].custom.format");
                let message = format!(
                    "{place}: a grammar in {:?} cannot be enforced within a call; use regex",
                    grammar.syntax
                );
                return Err(ApiError::invalid_param(place, message).code("unsupported"));
            }
            input["pattern"] = format!("^(?:{})$", grammar.definition).into();
            strict = Some(true);
        }
        let parameters = json!({"type": "object", "properties": {"input": input}, "required": ["input"],
            "additionalProperties": false});
        let (name, description) = (self.name.clone(), self.description.clone());
        Ok(Function { name, description, parameters: Some(parameters), strict })
    }
}

/// The text that a model called a custom tool with. Arguments that are not as they were described count as the text.
pub(crate) fn custom_input(arguments: &str) -> String {
    let parsed: Option<Value> = serde_json::from_str(arguments).ok();
    let input = parsed.as_ref().and_then(|object| object.get("input")).and_then(Value::as_str);
    input.unwrap_or(arguments).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tools_of(fields: Value) -> std::result::Result<RequestTools, (Option<String>, String)> {
        let mut body = json!({"messages": []});
        for (name, value) in fields.as_object().expect("fields") {
            body[name] = value.clone();
        }
        let request: ChatRequest = serde_json::from_value(body).expect("a request");
        request.request_tools().map_err(|error| (error.param, error.message))
    }

    fn names(tools: &RequestTools) -> Vec<&str> {
        tools.callable.tools.iter().map(|tool| tool.function.name.as_str()).collect()
    }

    fn tools() -> Value {
        json!([{"type": "function", "function": {"name": "a"}}, {"type": "custom", "custom": {"name": "b"}},
            {"type": "function", "function": {"name": "c"}}])
    }

    #[test]
    fn a_choice_may_allow_some_of_the_tools() {
        let allowed = |mode: &str, tools: Value| json!({"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}});
        let some = json!([{"type": "function", "function": {"name": "c"}}, {"type": "custom", "custom": {"name": "b"}}]);
        for (mode, choice) in [("auto", ToolChoice::Auto), ("required", ToolChoice::Required)] {
            let of = tools_of(json!({"tools": tools(), "tool_choice": allowed(mode, some.clone())}))
                .expect("tools");
            assert_eq!((names(&of), &of.callable.choice), (vec!["b", "c"], &choice));
        }
        let none = tools_of(json!({"tools": tools(), "tool_choice": allowed("auto", json!([]))}));
        assert!(none.expect("tools").callable.tools.is_empty());
        let other = allowed("auto", json!([{"type": "function", "function": {"name": "x"}}]));
        let (param, _) = tools_of(json!({"tools": tools(), "tool_choice": other})).expect_err("unknown");
        assert_eq!(param.as_deref(), Some("tool_choice/allowed_tools/tools"));
        for wrong in [allowed("perhaps", json!([])), allowed("auto", json!([{"type": "function"}]))] {
            assert!(serde_json::from_value::<ToolChoiceField>(wrong).is_err());
        }
    }

    #[test]
    fn a_custom_tool_is_a_function_of_one_text() {
        let choice = json!({"type": "custom", "custom": {"name": "b"}});
        let of = tools_of(json!({"tools": tools(), "tool_choice": choice})).expect("tools");
        assert_eq!(
            (&of.custom, &of.callable.choice),
            (&vec!["b".to_owned()], &ToolChoice::Named("b".to_owned()))
        );
        let parameters = of.callable.tools[1].function.parameters.as_ref().expect("parameters");
        assert_eq!(parameters["required"], json!(["input"]));
        let with_format = |format: Value| {
            tools_of(json!({"tools": [{"type": "custom", "custom": {"name": "b", "format": format}}]}))
        };
        let grammar =
            |syntax: &str| json!({"type": "grammar", "grammar": {"syntax": syntax, "definition": "a|b"}});
        let of = with_format(grammar("regex")).expect("tools");
        let parameters = of.callable.tools[0].function.parameters.as_ref().expect("parameters");
        assert_eq!(parameters["properties"]["input"]["pattern"], "^(?:a|b)$");
        assert_eq!(of.callable.tools[0].function.strict, Some(true));
        assert!(with_format(json!({"type": "text"})).is_ok());
        let (param, _) = with_format(grammar("lark")).expect_err("refused");
        assert_eq!(param.as_deref(), Some("tools[0].custom.format"));
        assert_eq!(custom_input(r#"{"input": "x = \"1\"\n"}"#), "x = \"1\"\n");
        assert_eq!(custom_input("x = 1"), "x = 1");
    }

    #[test]
    fn functions_are_tools_of_the_older_form() {
        let functions = json!([{"name": "a"}, {"name": "b"}]);
        for (choice, expected) in [
            (Value::Null, ToolChoice::Auto),
            (json!("auto"), ToolChoice::Auto),
            (json!("none"), ToolChoice::None),
            (json!({"name": "b"}), ToolChoice::Named("b".to_owned())),
        ] {
            let of = tools_of(json!({"functions": functions, "function_call": choice})).expect("tools");
            assert_eq!((names(&of), &of.callable.choice), (vec!["a", "b"], &expected));
            assert!(of.is_legacy && !of.callable.parallel);
        }
        for (fields, param) in [
            (json!({"functions": functions, "function_call": "perhaps"}), "function_call"),
            (json!({"functions": functions, "function_call": {"name": "x"}}), "function_call"),
            (json!({"functions": [{"name": "a b"}]}), "functions/0/name"),
            (json!({"functions": functions, "tools": tools()}), "functions"),
        ] {
            assert_eq!(tools_of(fields).expect_err("refused").0.as_deref(), Some(param));
        }
        assert!(tools_of(json!({"tools": [{"type": "function"}]})).is_err());
    }
}
