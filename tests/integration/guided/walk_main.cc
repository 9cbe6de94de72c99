// Writes random answers under JSON Schemas: a model that knows nothing, held by the masks alone.
//   guided_walk ANSWERS SEED < schemas, one a line
// For each schema one line of JSON: {"error": ...} when it is refused, else {"answers": [...],
// "cut": how many did not end}. Tokens are all bytes and some strings that JSON is made of.
#include <cstdlib>
#include <iostream>
#include <random>

#include "absl/strings/str_cat.h"
#include "common/guided/compile.h"
#include "common/guided/constraint.h"
#include "nlohmann/json.hpp"

namespace tandem::guided {
namespace {

constexpr TokenId kEnd = 0;
constexpr int kTokensMax = 4000;

std::shared_ptr<const Vocabulary> MakeVocabulary() {
  std::vector<std::string> tokens = {""};
  for (int b = 0; b < 256; ++b) tokens.push_back(std::string(1, static_cast<char>(b)));
  for (const char* more : {"{\"", "\":", "\": ", "\", \"", "\"}", "\"]", ", ", "},", "true", "null",
                           "\\u00", "\\n", "00", "12", ".5", "foo", "bar", "\xC3\xA9", "\n  "}) {
    tokens.push_back(more);
  }
  return std::make_shared<const Vocabulary>(std::move(tokens));
}

class Walker {
 public:
  Walker(std::shared_ptr<const Vocabulary> vocabulary, uint64_t seed)
      : vocabulary_(std::move(vocabulary)), random_(seed) {}

  // False when it did not end within kTokensMax tokens.
  bool Answer(const std::shared_ptr<Constraint>& constraint, std::string& text) {
    Matcher matcher(constraint, {.eos_token_ids = {kEnd}});
    for (int step = 0; step < kTokensMax; ++step) {
      const auto allowed = matcher.Allowed();
      if (!allowed.ok()) {
        std::cerr << allowed.status() << " after " << text << "\n";
        std::exit(1);
      }
      const TokenId token = Choose(*allowed, step);
      if (!matcher.Advance(token).ok()) std::exit(1);
      if (token == kEnd) return true;
      absl::StrAppend(&text, vocabulary_->TokenBytes(token));
    }
    return false;
  }

 private:
  // Leans to what closes, more so the longer the answer is: else few would end.
  TokenId Choose(absl::Span<const uint32_t> allowed, int step) {
    std::vector<TokenId> all, closing;
    for (TokenId t = 0; t < vocabulary_->size(); ++t) {
      if (((allowed[static_cast<size_t>(t) / 32] >> (t % 32)) & 1) == 0) continue;
      all.push_back(t);
      const auto bytes = vocabulary_->TokenBytes(t);
      if (t == kEnd || bytes == "\"" || bytes == "}" || bytes == "]") closing.push_back(t);
    }
    const bool close = step > 100 || random_() % 4 == 0;
    const std::vector<TokenId>& from = close && !closing.empty() ? closing : all;
    return from[random_() % from.size()];
  }

  const std::shared_ptr<const Vocabulary> vocabulary_;
  std::mt19937_64 random_;
};

int Run(int answers, uint64_t seed) {
  const auto vocabulary = MakeVocabulary();
  Walker walker(vocabulary, seed);
  for (std::string schema; std::getline(std::cin, schema);) {
    nlohmann::json out;
    auto program = Compile({.kind = request::GuidedParams::Kind::kJsonSchema, .text = schema},
                           vocabulary->token_bytes_max());
    if (program.ok()) {
      const auto constraint = std::make_shared<Constraint>(*std::move(program), vocabulary);
      out["answers"] = nlohmann::json::array();
      out["cut"] = 0;
      for (int i = 0; i < answers; ++i) {
        std::string text;
        if (walker.Answer(constraint, text)) {
          out["answers"].push_back(text);
        } else {
          out["cut"] = out["cut"].get<int>() + 1;
        }
      }
    } else {
      out["error"] = std::string(program.status().message());
    }
    std::cout << out.dump() << "\n";
  }
  return 0;
}

}  // namespace
}  // namespace tandem::guided

int main(int argc, char** argv) {
  if (argc != 3) {
    std::cerr << "usage: guided_walk ANSWERS SEED < schemas\n";
    return 2;
  }
  return tandem::guided::Run(std::atoi(argv[1]), std::strtoull(argv[2], nullptr, 10));
}
