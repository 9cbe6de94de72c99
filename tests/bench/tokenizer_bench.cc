// Encoding speed in bytes per second, one thread, for the models in the cache (TANDEM_MODELS):
// English text, and inputs chosen to be as slow as any. Also load and decoding times.
//   bench_tokenizer [TEXT_FILE]     the English text; without one, a generated text stands in
#include <benchmark/benchmark.h>

#include <cmath>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <iterator>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/model/checkpoint.h"
#include "common/model/tokenizer/tokenizer.h"

namespace tandem::model {
namespace {

constexpr size_t kTextBytes = size_t{1} << 20;

// Words drawn with Zipf's law from a list made of syllables: as many distinct words as prose has.
std::string MakeEnglish() {
  std::mt19937 random(1);
  const std::vector<std::string> syllables = absl::StrSplit(
      "the an in er on re at en nd ti es or te of ed is it al ar st to nt ng se ha as ou io le ve "
      "co "
      "me de hi ri ro ic ne ea ra ce li ch ll be ma si om ur pro com con ment ing tion able ness",
      ' ');
  std::vector<std::string> words;
  for (int i = 0; i < 20000; ++i) {
    std::string word;
    const int count = 1 + i % 4;
    for (int k = 0; k < count; ++k) word += syllables[random() % syllables.size()];
    words.push_back(word);
  }
  std::string text;
  while (text.size() < kTextBytes) {
    const double u = (random() + 0.5) / 4294967296.0;
    const auto rank = static_cast<size_t>(std::exp(u * std::log(20000.0)));
    absl::StrAppend(&text, words[rank % words.size()], random() % 12 == 0 ? ", " : " ");
    if (random() % 80 == 0) text += "\n";
  }
  return text;
}

std::string Repeat(absl::string_view unit) {
  std::string text;
  while (text.size() < kTextBytes) absl::StrAppend(&text, unit);
  return text;
}

// One word of random letters of an alphabet.
std::string RandomWord(const std::vector<std::string>& alphabet) {
  std::mt19937 random(2);
  std::string text;
  while (text.size() < kTextBytes) text += alphabet[random() % alphabet.size()];
  return text;
}

std::string RandomCjk() {
  std::mt19937 random(3);
  std::string text;
  while (text.size() < kTextBytes) {
    const uint32_t c = 0x4E00 + random() % 0x5000;
    text += {static_cast<char>(0xE0 | c >> 12), static_cast<char>(0x80 | (c >> 6 & 0x3F)),
             static_cast<char>(0x80 | (c & 0x3F))};
  }
  return text;
}

std::string RandomBytes() {
  std::mt19937 random(4);
  std::string text(kTextBytes, '\0');
  for (char& c : text) c = static_cast<char>(random());
  return text;
}

void EncodeText(benchmark::State& state, const Tokenizer* tokenizer, const std::string* text) {
  size_t ids = 0;
  for (auto _ : state) {
    const std::vector<TokenId> encoded = tokenizer->Encode(*text);
    ids = encoded.size();
    benchmark::DoNotOptimize(encoded.data());
  }
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * text->size()));
  state.counters["bytes_per_token"] = static_cast<double>(text->size()) / ids;
}

void DecodeIds(benchmark::State& state, const Tokenizer* tokenizer, const std::string* text) {
  const std::vector<TokenId> ids = tokenizer->Encode(*text);
  for (auto _ : state) benchmark::DoNotOptimize(tokenizer->Decode(ids, true));
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * text->size()));
}

void Load(benchmark::State& state, const TokenizerSource* source) {
  for (auto _ : state) benchmark::DoNotOptimize(Tokenizer::Create(*source));
}

struct NamedText {
  std::string name;
  std::string text;
};

std::vector<NamedText> MakeTexts(const char* english_file) {
  std::string english;
  if (english_file != nullptr) {
    std::ifstream in(english_file, std::ios::binary);
    english.assign(std::istreambuf_iterator<char>(in), {});
  }
  const std::vector<std::string> letters = absl::StrSplit("abcdefghijklmnopqrstuvwxyz", "");
  return {{"english", english.empty() ? MakeEnglish() : english},
          {"common_letters", RandomWord(absl::StrSplit("e t a o i n s r", ' '))},
          {"one_letter", Repeat("a")},
          {"spaces", Repeat(" ")},
          {"newlines", Repeat("\n")},
          {"digits", Repeat("1234567890")},
          {"random_letters_one_word", RandomWord(letters)},
          {"random_cjk_one_word", RandomCjk()},
          {"emoji", Repeat("👨‍👩‍👧‍👦")},
          {"random_bytes", RandomBytes()},
          {"alternating", Repeat(" a1.\n")}};
}

void RegisterModel(const std::string& name, const std::string& path,
                   const std::vector<NamedText>& texts) {
  auto checkpoint = Checkpoint::Open(path);
  if (!checkpoint.ok()) {
    std::cerr << "skipped " << path << ": " << checkpoint.status() << "\n";
    return;
  }
  // Benchmarks run after this returns and until the process ends.
  const TokenizerSource* source =
      std::make_unique<TokenizerSource>((*checkpoint)->tokenizer()).release();
  auto tokenizer = Tokenizer::Create(*source);
  if (!tokenizer.ok()) {
    std::cerr << "skipped " << path << ": " << tokenizer.status() << "\n";
    return;
  }
  const Tokenizer* kept = tokenizer->release();
  benchmark::RegisterBenchmark(absl::StrCat(name, "/load").c_str(), Load, source)
      ->Unit(benchmark::kMillisecond);
  for (const NamedText& text : texts) {
    benchmark::RegisterBenchmark(absl::StrCat(name, "/encode/", text.name).c_str(), EncodeText,
                                 kept, &text.text)
        ->Unit(benchmark::kMillisecond);
  }
  benchmark::RegisterBenchmark(absl::StrCat(name, "/decode/english").c_str(), DecodeIds, kept,
                               &texts[0].text)
      ->Unit(benchmark::kMillisecond);
}

}  // namespace
}  // namespace tandem::model

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  const auto texts = tandem::model::MakeTexts(argc > 1 ? argv[1] : nullptr);
  const char* models = std::getenv("TANDEM_MODELS");
  const std::string folder =
      models != nullptr ? models : absl::StrCat(std::getenv("HOME"), "/.cache/tandem/models");
  tandem::model::RegisterModel("smollm2", folder + "/SmolLM2-135M-Instruct.Q4_1.gguf", texts);
  tandem::model::RegisterModel("gemma3", folder + "/gemma-3-270m-q4_k_m.gguf", texts);
  benchmark::RunSpecifiedBenchmarks();
}
