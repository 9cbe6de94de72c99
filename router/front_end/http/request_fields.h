// The fields that bodies of /v1/completions and /v1/chat/completions share: sampling and stop
// parameters, the number of answers, streaming, constraints, and what comes back besides the text.
// Thread safety: pure functions.
#pragma once

#include "router/front_end/http/api_request.h"
#include "router/front_end/http/json_fields.h"
#include "tandem/v1/client.pb.h"

namespace tandem::router {

// Reads the shared fields into `api`, where they concern how the answer is written, and into
// `request`, where they concern what is generated. A fault goes to `fields`.
// REQUIRES: `api.kind` is set; `request` is empty.
void ReadSharedFields(Fields& fields, ApiRequest& api, v1::GenerateRequest& request);

// Copies to `chat`, a chat's body, the fields of ours that concern how a request is served:
// `request_id`, `priority`, `service_tier`, `deadline_s` and `cache_salt`. Every API has them under
// these names.
void CopyServingFields(Fields& fields, Json& chat);

}  // namespace tandem::router
