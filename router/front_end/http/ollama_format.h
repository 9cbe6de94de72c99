// Writes answers of Ollama's POST /api/chat and /api/generate: a stream is a JSON object in each
// line, of which the last has `done` true, times and counts; see answer_format.h for the contract.
// Thread safety: as answer_format.h states.
#pragma once

#include <memory>
#include <string>

#include "absl/time/time.h"
#include "router/front_end/http/answer_format.h"

namespace tandem::router {

// REQUIRES: `api.kind` is kOllamaChat or kOllamaGenerate; `tokenizer` outlives the format.
std::unique_ptr<AnswerFormat> NewOllamaFormat(ApiRequest api, AnswerHead head,
                                              const model::Tokenizer& tokenizer);

// The answer to a request for loading or unloading the model, which a router has no part in.
Json OllamaLoaded(ApiKind kind, const std::string& model, const std::string& reason,
                  absl::Time now);
// A time as Ollama writes it: "2026-11-24T00:36:37.123456789Z".
std::string OllamaTime(absl::Time time);

}  // namespace tandem::router
