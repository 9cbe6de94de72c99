// Where a node got a prompt's KV from, in words. Thread safety: pure functions.
#pragma once

#include <string>

#include "tandem/v1/common.pb.h"

namespace tandem::cli {

// "40 computed, 0 received, 360 cached (128 from host memory, 64 from disk, 32 fetched)", with what
// there is in the brackets.
std::string SourceText(const v1::TokensBySource& tokens);

}  // namespace tandem::cli
