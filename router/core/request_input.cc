#include "router/core/request_input.h"

namespace tandem::router {

int64_t RequestInput::HeldBytesMax() const {
  int64_t shared = static_cast<int64_t>(prompt->size() * sizeof(TokenId) + guided->text.size());
  for (const std::string& choice : guided->choices) shared += static_cast<int64_t>(choice.size());
  const int64_t own =
      kSequenceBytes + int64_t{stop.max_tokens} * static_cast<int64_t>(sizeof(TokenId));
  return shared + sequences_at_once() * own;
}

}  // namespace tandem::router
