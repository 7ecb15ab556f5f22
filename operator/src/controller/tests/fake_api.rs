//! An API server that holds objects and nothing more: create, read, patch, delete, with resource versions. It speaks HTTP, so
//! that the real client is used, and keeps a record of what was asked of it.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard},
};

use axum::{
    Router,
    body::Bytes,
    extract::State,
    http::{Method, StatusCode, Uri},
    response::{IntoResponse, Response},
};
use kube::{Client, Config};
use serde_json::{Value, json};

/// A refusal: status, reason, message.
type Refusal = (u16, &'static str, &'static str);

#[derive(Default)]
struct Kept {
    objects: BTreeMap<String, Value>,
    asked: Vec<String>,
    refusals: Vec<(String, Refusal)>,
    version: u64,
}

/// The fake API server.
#[derive(Clone, Default)]
pub struct FakeApi(Arc<Mutex<Kept>>);

impl FakeApi {
    /// Starts it and connects a client.
    pub async fn start() -> (Self, Client) {
        let api = Self::default();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let app = Router::new().fallback(answer).with_state(api.clone());
        tokio::spawn(async move { axum::serve(listener, app).await });
        let config = Config::new(format!("http://{address}").parse().unwrap());
        (api, Client::try_from(config).unwrap())
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.0.lock().unwrap()
    }

    /// Puts an object there, under its path.
    pub fn put(&self, path: &str, object: &Value) -> Value {
        self.kept().put(path, object.clone())
    }

    /// An object, by its path.
    pub fn get(&self, path: &str) -> Option<Value> {
        self.kept().objects.get(path).cloned()
    }

    /// Paths of all objects.
    pub fn paths(&self) -> Vec<String> {
        self.kept().objects.keys().cloned().collect()
    }

    /// Refuses every request whose method and path begin with `what`.
    pub fn refuse(&self, what: &str, refusal: Refusal) {
        self.kept().refusals.push((what.to_owned(), refusal));
    }

    /// Method and path of what was written since the last call, events apart.
    pub fn writes(&self) -> Vec<String> {
        let asked = std::mem::take(&mut self.kept().asked);
        asked.into_iter().filter(|request| !request.starts_with("GET") && !request.ends_with("/events")).collect()
    }
}

impl Kept {
    fn put(&mut self, path: &str, mut object: Value) -> Value {
        self.version += 1;
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        if object["metadata"]["uid"].is_null() {
            object["metadata"]["uid"] = json!(format!("uid-{}", self.version));
        }
        self.objects.insert(path.to_owned(), object.clone());
        object
    }

    fn answer(&mut self, method: &Method, path: &str, body: &[u8]) -> (u16, Value) {
        let request = format!("{method} {path}");
        self.asked.push(request.clone());
        if let Some((_, (code, reason, message))) = self.refusals.iter().find(|(what, _)| request.starts_with(what.as_str())) {
            return (*code, status(*code, reason, message));
        }
        let body: Value = serde_json::from_slice(body).unwrap_or_default();
        match *method {
            Method::POST => {
                let path = format!("{path}/{}", body["metadata"]["name"].as_str().unwrap_or_default());
                if self.objects.contains_key(&path) {
                    return (409, status(409, "AlreadyExists", "it is there already"));
                }
                (201, self.put(&path, body))
            }
            Method::GET if path.ends_with("/events") => (200, json!({"metadata": {}, "items": []})),
            Method::GET => {
                self.objects.get(path).map_or_else(|| (404, status(404, "NotFound", "not there")), |object| (200, object.clone()))
            }
            Method::DELETE => match self.objects.remove(path) {
                Some(object) => (200, object),
                None => (404, status(404, "NotFound", "not there")),
            },
            Method::PATCH => self.patch(path, body),
            _ => (405, status(405, "MethodNotAllowed", "not here")),
        }
    }

    fn patch(&mut self, path: &str, body: Value) -> (u16, Value) {
        let object_path = path.strip_suffix("/status").unwrap_or(path);
        let Some(mut object) = self.objects.get(object_path).cloned() else {
            return (201, self.put(object_path, body));
        };
        let asked = &body["metadata"]["resourceVersion"];
        if !asked.is_null() && *asked != object["metadata"]["resourceVersion"] {
            return (409, status(409, "Conflict", "the object has been modified"));
        }
        for (name, field) in body.as_object().into_iter().flatten().filter(|(name, _)| *name != "metadata") {
            object[name.as_str()] = field.clone();
        }
        (200, self.put(object_path, object))
    }
}

fn status(code: u16, reason: &str, message: &str) -> Value {
    json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason, "message": message})
}

async fn answer(State(api): State<FakeApi>, method: Method, uri: Uri, body: Bytes) -> Response {
    let (code, body) = api.kept().answer(&method, uri.path(), &body);
    (StatusCode::from_u16(code).unwrap(), [("content-type", "application/json")], body.to_string()).into_response()
}
