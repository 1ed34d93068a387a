"""The API framework: it turns methods into HTTP endpoints.

It depends on the queue only for the maximum job size, which limits the size of requests, and for three exceptions with
extra data (`JobHeld`, `PutRefused`, `NotDurableYet`). The endpoints are in the `api` of each feature.

- `endpoint`: the `@endpoint` decorator, and `Endpoint`, the description that it makes of a method.
- `reading`: parses path, query and body into the types of an endpoint, strictly.
- `problems`: `application/problem+json` (RFC 9457) for every error.
- `schema`: JSON Schemas of the types, and schemas in words for error messages.
- `openapi`: the OpenAPI 3.1 document.
- `router`: routes, the request size limit, the document.
- `values`, `cursors`: types that several groups share, and cursors for lists.
- `durability`: waits for the journal.

How to add a group of endpoints:

1. Write a class in the `api` of its feature. Its name is the tag in the OpenAPI document, followed by `Endpoints`. Its
   docstring describes the tag. `__init__` takes what the endpoints need: the broker, the clock, `commit`, the model.
2. Write each endpoint as a method with `@endpoint("POST", "/things/{id}/do", role=OPERATOR)`. The signature defines the
   endpoint: path parameters are annotated with types from `values`; `query` is a subclass of `RequestModel` whose
   fields are the parameters; `body` is a `RequestModel`, or a list or union of them, and optional if it has a default.
   The return type is a `ResponseModel`, None for status 204, or a Response for content other than JSON. The docstring
   is for users.
3. Add the class to the groups in `web.app`. The OpenAPI document, parsing, error responses, and the checks of
   the guard follow from that.

A method may switch greenlets, so it must look up tubes and jobs again after each call that may switch. To refuse a
request, call `problems.refuse` if a field is invalid; otherwise raise NotFound, Conflict, ServiceUnavailable or
PutRefused. A method that changes something writes an audit entry, as changes.operations does, and ends with
`durability.wait_until_durable(self._commit)`. A method that reports on a single job ends with
`durability.wait_before_report(self._commit)`.

The signature of a method is the only definition of its endpoint. The types are msgspec structs with `Annotated`
constraints, so the code that parses a request, the error message and the OpenAPI document cannot disagree.
"""
