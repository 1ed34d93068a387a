"""The framework of the API: it turns methods into HTTP endpoints.

It depends on the queue only for the maximum job size, which limits the size of requests, and for three exceptions with
extra data (`JobHeld`, `PutRefused`, `NotDurableYet`). The endpoints are in `web.features`; the docstring of
`web.api` says how to add one.

- `endpoint`: the `@endpoint` decorator, and `Endpoint`, the description that it makes of a method.
- `reading`: parses path, query and body into the types of an endpoint, strictly.
- `problems`: `application/problem+json` (RFC 9457) for every error.
- `schema`: JSON Schemas of the types, and schemas in words for error messages.
- `openapi`: the OpenAPI 3.1 document.
- `docs`: the document as a page, with a curl example for each endpoint.
- `router`: routes, the request size limit, the document and its page.

The signature of a method is the only definition of its endpoint. The types are msgspec structs with `Annotated`
constraints, so the code that parses a request, the error message, the OpenAPI document and the page cannot disagree.

Why not a library: msgspec already validates requests, in C, and generates the schemas. With a library the project would
still have to write the rest:

- errors that name a field, as RFC 9457 problems, also for errors that Flask raises;
- limits on request bodies before they are read, and on list lengths before the elements are decoded: a list of 60,000
  jobs would block the event loop for 150 ms;
- a documentation page without scripts and styles of other sites, as the Content-Security-Policy requires;
- a document that is generated in steps, since all of it takes 70 ms.
"""
