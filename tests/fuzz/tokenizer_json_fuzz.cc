// Goal: any bytes as tokenizer.json and, where they make a tokenizer, the same bytes as text:
// encoding and decoding must not crash, ids must lie in the vocabulary, and streamed text must
// equal the text decoded as a whole.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "common/base/check.h"
#include "common/model/tokenizer/streaming_detokenizer.h"
#include "common/model/tokenizer/tokenizer.h"

namespace {

// Text beyond this only repeats what shorter text does.
constexpr size_t kTextBytesMax = 2048;

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using tandem::model::Tokenizer;
  tandem::model::TokenizerSource source;
  source.tokenizer_json.assign(reinterpret_cast<const char*>(data), size);
  if (source.tokenizer_json.empty()) return 0;
  const auto tokenizer = Tokenizer::Create(source);
  if (!tokenizer.ok()) return 0;
  const std::string text = source.tokenizer_json.substr(size - std::min(size, kTextBytesMax));
  for (const bool parse_special : {true, false}) {
    const std::vector<tandem::TokenId> ids =
        (*tokenizer)
            ->Encode("The answer is 42,  naïve 世界 <s>" + text, {.parse_special = parse_special});
    tandem::model::StreamingDetokenizer stream(tokenizer->get(), {.skip_special_tokens = false});
    std::string streamed;
    for (const tandem::TokenId id : ids) {
      TANDEM_CHECK(id >= 0, "token id ", id);
      stream.AppendTo(id, &streamed);
    }
    streamed += stream.Flush();
    TANDEM_CHECK(streamed == (*tokenizer)->Decode(ids, false));
  }
  return 0;
}
