// What guided decoding costs: compiling, the first mask of a state, a mask met before, and a whole
// answer's tokens, over the real vocabulary (TANDEM_MODELS) or one of random strings.
#include <benchmark/benchmark.h>

#include <cstdlib>
#include <iostream>
#include <memory>
#include <random>
#include <string>

#include "common/guided/compile.h"
#include "common/guided/constraint.h"
#include "common/model/checkpoint.h"
#include "tests/testing/models.h"

namespace tandem::guided {
namespace {

using Kind = request::GuidedParams::Kind;

struct Case {
  const char* name;
  request::GuidedParams params;
  std::string text;  // an answer that satisfies it
};

std::vector<Case> Cases() {
  const std::string schema =
      R"({"type": "object", "properties": {"name": {"type": "string", "maxLength": 200},
          "age": {"type": "integer", "minimum": 0, "maximum": 150},
          "email": {"type": "string", "format": "email"},
          "tags": {"type": "array", "items": {"type": "string"}, "maxItems": 20},
          "address": {"type": "object", "properties": {"street": {"type": "string"},
          "city": {"type": "string"}}, "required": ["street", "city"]}},
          "required": ["name", "age", "tags"], "additionalProperties": false})";
  return {{"schema",
           {.kind = Kind::kJsonSchema, .text = schema},
           R"({"name": "Ada Lovelace of London", "age": 36, "email": "ada@example.com", )"
           R"("tags": ["mathematics", "engines"], "address": {"street": "12 Square", "city": )"
           R"("London"}})"},
          {"json_object",
           {.kind = Kind::kJsonObject},
           R"({"a": [1, 2.5, {"b": "some text here"}], "c": null})"},
          {"regex",
           {.kind = Kind::kRegex, .text = "(?:[A-Z][a-z]+ ){1,5}[0-9]{4}-[0-9]{2}-[0-9]{2}"},
           "Paris London Rome 2024-05-06"}};
}

std::shared_ptr<const Vocabulary> LoadVocabulary() {
  if (const auto path = testing::FindModel(testing::kSmolLm2File)) {
    const auto checkpoint = model::Checkpoint::Open(*path);
    const auto tokenizer = model::Tokenizer::Create((*checkpoint)->tokenizer());
    return Vocabulary::FromTokenizer(**tokenizer, (*checkpoint)->config().vocab_size, {});
  }
  std::cerr << "no " << testing::kSmolLm2File << ": a random vocabulary stands in\n";
  std::mt19937 random(1);
  std::vector<std::string> tokens;
  for (int b = 0; b < 256; ++b) tokens.push_back(std::string(1, static_cast<char>(b)));
  while (tokens.size() < 49152) {
    std::string token(1 + random() % 10, ' ');
    for (char& c : token) c = static_cast<char>('a' + random() % 26);
    tokens.push_back(token);
  }
  return std::make_shared<const Vocabulary>(std::move(tokens));
}

std::shared_ptr<Constraint> NewConstraint(const Case& c,
                                          const std::shared_ptr<const Vocabulary>& vocabulary) {
  return std::make_shared<Constraint>(*Compile(c.params, vocabulary->token_bytes_max()),
                                      vocabulary);
}

void CompileCase(benchmark::State& state, Case c, std::shared_ptr<const Vocabulary> vocabulary) {
  for (auto _ : state) {
    benchmark::DoNotOptimize(Compile(c.params, vocabulary->token_bytes_max()));
  }
}

// Every byte of the answer as a token, each followed by its mask; per token.
void Follow(const Case& c, const std::shared_ptr<Constraint>& constraint) {
  auto place = constraint->Start();
  for (const char& byte : c.text) {
    benchmark::DoNotOptimize(constraint->Mask(place));
    if (!constraint->Advance(place, absl::string_view(&byte, 1))) std::abort();
  }
}

void FirstMasks(benchmark::State& state, Case c, std::shared_ptr<const Vocabulary> vocabulary) {
  for (auto _ : state) {
    state.PauseTiming();
    const auto constraint = NewConstraint(c, vocabulary);
    state.ResumeTiming();
    Follow(c, constraint);
  }
  state.counters["us_per_token"] =
      benchmark::Counter(static_cast<double>(state.iterations() * c.text.size()) / 1e6,
                         benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}

void CachedMasks(benchmark::State& state, Case c, std::shared_ptr<const Vocabulary> vocabulary) {
  const auto constraint = NewConstraint(c, vocabulary);
  Follow(c, constraint);
  for (auto _ : state) Follow(c, constraint);
  state.counters["us_per_token"] =
      benchmark::Counter(static_cast<double>(state.iterations() * c.text.size()) / 1e6,
                         benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}

// As a sequence does it: with the end token's bit, which costs a copy where it is set.
void MatcherTokens(benchmark::State& state, Case c, std::shared_ptr<const Vocabulary> vocabulary) {
  const auto constraint = NewConstraint(c, vocabulary);
  std::vector<TokenId> tokens;
  for (const char byte : c.text) {
    for (TokenId id = 0; id < vocabulary->size(); ++id) {
      if (vocabulary->TokenBytes(id) != absl::string_view(&byte, 1)) continue;
      tokens.push_back(id);
      break;
    }
  }
  for (auto _ : state) {
    Matcher matcher(constraint, {.eos_token_ids = {2}});
    for (const TokenId token : tokens) {
      benchmark::DoNotOptimize(matcher.Allowed());
      if (!matcher.Advance(token).ok()) std::abort();
    }
  }
  state.counters["us_per_token"] =
      benchmark::Counter(static_cast<double>(state.iterations() * tokens.size()) / 1e6,
                         benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}

void RegisterAll() {
  const auto vocabulary = LoadVocabulary();
  for (const Case& c : Cases()) {
    const std::string name = c.name;
    benchmark::RegisterBenchmark((name + "/compile").c_str(), CompileCase, c, vocabulary)
        ->Unit(benchmark::kMillisecond);
    benchmark::RegisterBenchmark((name + "/first").c_str(), FirstMasks, c, vocabulary)
        ->Unit(benchmark::kMillisecond);
    benchmark::RegisterBenchmark((name + "/cached").c_str(), CachedMasks, c, vocabulary)
        ->Unit(benchmark::kMillisecond);
    benchmark::RegisterBenchmark((name + "/matcher").c_str(), MatcherTokens, c, vocabulary)
        ->Unit(benchmark::kMillisecond);
  }
}

}  // namespace
}  // namespace tandem::guided

int main(int argc, char** argv) {
  tandem::guided::RegisterAll();
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
