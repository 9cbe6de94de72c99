// Writes answers of Anthropic's POST /v1/messages: a message made of blocks, which are texts and
// calls in the order in which the model wrote them; see answer_format.h for the contract.
// Thread safety: as answer_format.h states.
#pragma once

#include <memory>

#include "router/front_end/http/answer_format.h"

namespace tandem::router {

// REQUIRES: `api.kind` is kMessage; `tokenizer` outlives the format.
std::unique_ptr<AnswerFormat> NewAnthropicFormat(ApiRequest api, AnswerHead head,
                                                 const model::Tokenizer& tokenizer);

}  // namespace tandem::router
