#include "common/model/byte_vocabulary.h"

#include <string>

namespace tandem::model {
namespace {

// GPT-2's printable stand-in for a byte: itself where printable, else the code points from 256 on,
// in order.
std::string ByteSymbol(int byte) {
  const auto printable = [](int b) {
    return (b >= '!' && b <= '~') || (b >= 0xa1 && b <= 0xac) || (b >= 0xae && b <= 0xff);
  };
  int code_point = byte;
  if (!printable(byte)) {
    code_point = 256;
    for (int b = 0; b < byte; ++b) code_point += printable(b) ? 0 : 1;
  }
  if (code_point < 0x80) return std::string(1, static_cast<char>(code_point));
  return {static_cast<char>(0xc0 | (code_point >> 6)),
          static_cast<char>(0x80 | (code_point & 0x3f))};
}

}  // namespace

TokenizerSource ByteVocabulary() {
  constexpr int32_t kNormal = 1, kControl = 3;
  TokenizerSource source;
  source.gguf_model = "gpt2";
  source.gguf_pre = "gpt-2";
  for (int byte = 0; byte < 256; ++byte) source.tokens.push_back(ByteSymbol(byte));
  source.token_types.assign(256, kNormal);
  for (const char* special : {"<|im_start|>", "<|pad|>", "<|im_end|>"}) {
    source.tokens.push_back(special);
    source.token_types.push_back(kControl);
  }
  source.eos_token_id = kByteEndToken;
  source.padding_token_id = kBytePadToken;
  source.add_bos = false;
  source.add_eos = false;
  return source;
}

const std::string& ByteVocabularyChatTemplate() {
  static const std::string source =
      "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}"
      "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
  return source;
}

}  // namespace tandem::model
