// Writes answers of POST /v1/responses: see answer_format.h for the contract.
// Thread safety: as answer_format.h states.
#pragma once

#include <memory>

#include "router/front_end/http/answer_format.h"

namespace tandem::router {

// REQUIRES: `api.kind` is kResponse; `tokenizer` outlives the format.
std::unique_ptr<AnswerFormat> NewResponseFormat(ApiRequest api, AnswerHead head,
                                                const model::Tokenizer& tokenizer);

}  // namespace tandem::router
