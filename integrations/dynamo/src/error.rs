//! Errors as Dynamo sorts them.

use dynamo_backend_common::{BackendError, DynamoError, ErrorType};
use realizar_engine::{Error, Fault};

fn error(kind: ErrorType, message: impl ToString) -> DynamoError {
    DynamoError::builder().error_type(kind).message(message.to_string()).build()
}

/// The request is wrong, which the client is told.
pub(crate) fn invalid(message: impl ToString) -> DynamoError {
    let message = message.to_string();
    DynamoError::builder()
        .error_type(ErrorType::InvalidRequest)
        .public_message(&message)
        .message(&message)
        .build()
}

/// The engine is not there, or no more. Dynamo then asks another worker.
pub(crate) fn shut_down(message: impl ToString) -> DynamoError {
    error(ErrorType::Backend(BackendError::EngineShutdown), message)
}

/// Neither the request nor the load is to blame.
pub(crate) fn internal(message: impl ToString) -> DynamoError {
    error(ErrorType::Backend(BackendError::Unknown), message)
}

/// Why the engine refused or ended a request.
pub(crate) fn from_engine(cause: &Error) -> DynamoError {
    match (cause, cause.fault()) {
        (Error::ShuttingDown | Error::EngineFailed { .. }, _) => shut_down(cause),
        (_, Fault::Client) => invalid(cause),
        (_, Fault::Overload) => error(ErrorType::WorkerOverloaded, cause),
        (_, Fault::Internal) => internal(cause),
    }
}
