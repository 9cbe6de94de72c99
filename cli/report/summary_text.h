// A finished answer in one paragraph. Thread safety: pure functions.
#pragma once

#include <string>

#include "tandem/v1/client.pb.h"

namespace tandem::cli {

// What --summary prints: which nodes served the request, tokens, times, KV moved.
std::string FormatSummary(const v1::Finished& finished);

}  // namespace tandem::cli
