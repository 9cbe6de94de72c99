// A finished answer in one paragraph. Thread safety: pure functions.
#pragma once

#include <string>

#include "tandem/v1/client.pb.h"

namespace tandem::cli {

// What --summary prints: which nodes served the request, tokens, why the answer ended,
// times, KV moved.
std::string FormatSummary(const v1::Finished& finished);
// A remark in brackets, without a newline, about an answer that its length ended; empty for any
// other.
std::string CutOffNote(const v1::Finished& finished);
// "stop", "length", ...: the reason's name in lower case.
std::string ReasonText(v1::FinishReason reason);

}  // namespace tandem::cli
