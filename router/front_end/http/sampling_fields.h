// Reads the sampling and stop parameters of an HTTP body into a request. The parameters and their
// names in each API come from common/request/parameter_table.h; a row there is all that a new one
// needs.
// Thread safety: pure functions.
#pragma once

#include "common/request/parameter_table.h"
#include "router/front_end/http/json_fields.h"
#include "tandem/v1/client.pb.h"

namespace tandem::router {

// Reads every parameter that `api` knows. A field that is absent or null stays absent. Types are
// checked here, ranges with those of all front ends (router/front_end/request_validation.h). A
// fault goes to `fields` and names the field: "top_k: 1.5, expected a whole number".
void ReadSamplingFields(Fields& fields, request::Api api, v1::GenerateRequest& request);

// Adds to `names` the aliases of `api` by which the client gave parameters.
void NameAliases(const Fields& fields, request::Api api, FieldNames& names);

// Copies every parameter that `api` knows from `fields` to `chat`, a chat's body, under the name
// that a chat has for it. Values are copied unread: the chat's reader checks them.
void CopySamplingFields(Fields& fields, request::Api api, Json& chat);

}  // namespace tandem::router
