// How many tokens of a prompt a node reads from which tier of its storage. Thread safety: a value.
#pragma once

#include <algorithm>
#include <cstdint>

namespace tandem::router {

struct ReadTokens {
  int64_t host = 0;  // in host memory
  int64_t disk = 0;  // on disk alone

  int64_t total() const { return host + disk; }
  // Of `tokens` of these, at most all: as many of each tier in proportion.
  ReadTokens Part(int64_t tokens) const {
    if (tokens >= total()) return *this;
    const int64_t part = std::max<int64_t>(0, tokens);
    const int64_t of_host = total() == 0 ? 0 : host * part / total();
    return {.host = of_host, .disk = part - of_host};
  }
};

}  // namespace tandem::router
