// Reads what the answer must look like: vLLM's guided_* fields and structured_outputs, and OpenAI's
// response_format.
// Thread safety: pure functions.
#pragma once

#include "router/front_end/http/json_fields.h"
#include "tandem/v1/client.pb.h"

namespace tandem::router {

// Sets `request.guided` if the body has a constraint, and adds its member's name to `names`. More
// than one is a fault; faults go to `fields`.
void ReadGuided(Fields& fields, v1::GenerateRequest& request, FieldNames& names);

}  // namespace tandem::router
