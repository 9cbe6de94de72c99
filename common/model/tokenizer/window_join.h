// Joins the encodings of a long word's windows into the encoding of the whole word.
//
// Merging always joins the pair of lowest key, so merges inside a stretch of the word that no merge
// crosses are the same as if the stretch were alone. Hence (1) any run of an encoding's tokens
// is the encoding of its text, and (2) two encodings side by side are the encoding of both texts
// exactly when the two tokens that meet encode to themselves. Otherwise Append encodes a few tokens
// around the seam again, and more of them until both new seams hold.
//
// Thread safety: one thread. Cost: linear in the windows, unless seams do not settle.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "common/base/ids.h"

namespace tandem::model::tokenizer_internal {

// A token of a word and the bytes it stands for.
struct BpePiece {
  TokenId id;
  uint32_t begin;
  uint32_t end;
};
using BpePieces = std::vector<BpePiece>;

class WindowJoin {
 public:
  // Tokens on either side of a seam that are encoded again before Append gives up.
  static constexpr size_t kSeamTokensMax = 64;

  // Encodes the word's bytes [begin, end) into `out`, which it clears.
  using EncodeText = absl::FunctionRef<void(uint32_t begin, uint32_t end, BpePieces* out)>;

  // `encode` outlives this.
  explicit WindowJoin(EncodeText encode) : encode_(encode) {}

  // Appends the encoding of the next window; false when the seam does not settle: the word must
  // then be encoded whole. REQUIRES: `window` is not empty and follows what was appended.
  bool Append(const BpePieces& window);

  // The encoding of all windows so far.
  const BpePieces& pieces() const { return pieces_; }

 private:
  bool Holds(const BpePiece& left, const BpePiece& right);
  // Encodes again `count` tokens on either side; whether the new seams hold.
  bool MendSeam(const BpePieces& window, size_t count);

  EncodeText encode_;
  BpePieces pieces_;
  BpePieces middle_;
  BpePieces pair_;
};

}  // namespace tandem::model::tokenizer_internal
