// Goal: a token is allowed exactly when its bytes can be continued to a text that satisfies the
// constraint. At every step of random answers the test checks every token of the vocabulary against
// a slow reference, which shares only the frontends' automata with the library: it removes no empty
// moves, merges no states, and has no trie and no cache. The test uses a vocabulary of random byte
// strings, and the real model's where the model is present.
#include <algorithm>
#include <cstdio>
#include <iostream>
#include <map>
#include <random>
#include <set>

#include "absl/strings/str_cat.h"
#include "common/guided/constraint.h"
#include "common/model/byte_vocabulary.h"
#include "common/model/checkpoint.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/models.h"
#include "tests/testing/status_matchers.h"
#include "tests/unit/guided/acceptance.h"

namespace tandem::guided {
namespace {

using Kind = request::GuidedParams::Kind;
using Stacks = std::set<std::vector<StateId>>;

// The reference: sets of whole stacks, advanced by the definition.
class SlowReference {
 public:
  SlowReference(const GrammarBuilder& builder, RuleId root)
      : builder_(builder), lives_(builder.moves().size()) {
    for (const auto& rule : builder.rules()) ends_.insert(rule.end);
    for (const StateId end : ends_) lives_[end] = true;
    for (bool grown = true; grown;) {
      grown = false;
      for (StateId s = 0; s < lives_.size(); ++s) {
        for (const auto& move : builder.moves()[s]) {
          if (!lives_[s] && Lives(move)) grown = lives_[s] = true;
        }
      }
    }
    start_ = Close({{builder.start(root)}});
  }

  const Stacks& start() const { return start_; }
  Stacks Step(const Stacks& from, uint8_t byte) const {
    Stacks to;
    for (const auto& stack : from) {
      if (stack.empty()) continue;
      for (const auto& move : builder_.moves()[stack.back()]) {
        if (move.kind != GrammarBuilder::Move::Kind::kBytes || byte < move.low ||
            byte > move.high || !lives_[move.target]) {
          continue;
        }
        auto next = stack;
        next.back() = move.target;
        to.insert(std::move(next));
      }
    }
    return Close(std::move(to));
  }
  static bool MayEnd(const Stacks& stacks) { return stacks.count({}) > 0; }

 private:
  bool Lives(const GrammarBuilder::Move& move) const {
    return lives_[move.target] &&
           (move.kind != GrammarBuilder::Move::Kind::kCall || lives_[builder_.start(move.rule)]);
  }
  Stacks Close(Stacks stacks) const {
    std::vector<std::vector<StateId>> todo(stacks.begin(), stacks.end());
    const auto add = [&](std::vector<StateId> stack) {
      if (stacks.insert(stack).second) todo.push_back(std::move(stack));
    };
    while (!todo.empty()) {
      const std::vector<StateId> stack = todo.back();
      todo.pop_back();
      if (stack.empty()) continue;
      if (ends_.count(stack.back()) > 0) add({stack.begin(), stack.end() - 1});
      for (const auto& move : builder_.moves()[stack.back()]) {
        if (!Lives(move) || move.kind == GrammarBuilder::Move::Kind::kBytes) continue;
        auto next = stack;
        next.back() = move.target;
        if (move.kind == GrammarBuilder::Move::Kind::kCall)
          next.push_back(builder_.start(move.rule));
        add(std::move(next));
      }
    }
    return stacks;
  }

  const GrammarBuilder& builder_;
  std::set<StateId> ends_;
  std::vector<bool> lives_;
  Stacks start_;
};

struct Case {
  Kind kind;
  std::string text;
};

const Case kCases[] = {
    {Kind::kRegex,
     "(?:[a-z]+ ){2,5}[0-9]{1,3}(?:\xC3\xA9|\xE4\xB8\xAD|[\xE0\xA4\x80-\xF0\x9F\x98\x80])*"},
    {Kind::kRegex, ".{0,300}end"},
    {Kind::kGrammar, "root ::= \"(\" root* \")\" | [^()\"]{1,20} | \"\\\"\" [a-z ]+ \"\\\"\""},
    {Kind::kJsonSchema, R"({"type": "object", "properties": {"name": {"type": "string",
      "maxLength": 90}, "age": {"type": "integer", "minimum": -3, "maximum": 1200},
      "tags": {"type": "array", "items": {"enum": ["red", "green", "dark green", 7]},
      "maxItems": 40}}, "required": ["age"], "additionalProperties": {"type": "number"}})"},
    {Kind::kJsonSchema, R"({"$ref": "#/$defs/tree", "$defs": {"tree": {"type": "object",
      "properties": {"v": {"type": ["boolean", "null"]}, "kids": {"type": "array",
      "items": {"$ref": "#/$defs/tree"}}}, "additionalProperties": false}}})"},
    {Kind::kJsonSchema, R"({"type": "string", "pattern": "^[a-z\\n]{3,200}$"})"},
    {Kind::kJsonSchema, R"({"type": "string", "format": "date-time"})"},
    {Kind::kJsonObject, ""},
};

absl::StatusOr<RuleId> Add(const Case& c, GrammarBuilder& builder) {
  switch (c.kind) {
    case Kind::kRegex:
      return AddRegex(c.text, builder);
    case Kind::kGrammar:
      return AddGbnf(c.text, builder);
    case Kind::kJsonSchema:
      return AddJsonSchema(c.text, builder);
    default:
      return AddJsonSchema(R"({"type": "object"})", builder);
  }
}

std::shared_ptr<const Vocabulary> RandomVocabulary(std::mt19937_64& random) {
  std::vector<std::string> tokens = {"", ""};  // two that no constraint may choose; 1 ends
  for (int b = 0; b < 256; ++b) tokens.push_back(std::string(1, static_cast<char>(b)));
  const std::string letters = "{}[]\":, \n\\abcdenrt0123456789-.eu()";
  while (tokens.size() < 2500) {
    std::string token;
    for (size_t i = 1 + random() % 6; i > 0; --i) token += letters[random() % letters.size()];
    tokens.push_back(token);
  }
  return std::make_shared<const Vocabulary>(std::move(tokens));
}

class Walk {
 public:
  Walk(const Case& c, std::shared_ptr<const Vocabulary> vocabulary, std::mt19937_64& random)
      : vocabulary_(std::move(vocabulary)), random_(random) {
    root_ = *Add(c, builder_);
    reference_ = std::make_unique<SlowReference>(builder_, root_);
    constraint_ = std::make_shared<Constraint>(
        *Compile({.kind = c.kind, .text = c.text}, vocabulary_->token_bytes_max()), vocabulary_);
  }

  // Follows a random answer of at most `tokens_max`; returns how many masks were compared.
  int Run(int tokens_max) {
    Matcher matcher(constraint_, {.eos_token_ids = {1}});
    Stacks stacks = reference_->start();
    for (int step = 0; step < tokens_max; ++step) {
      const auto allowed = matcher.Allowed();
      if (!allowed.ok()) {
        ADD_FAILURE() << allowed.status();
        return step;
      }
      const std::vector<TokenId> tokens = Compare(*allowed, stacks);
      const TokenId token = tokens[random_() % tokens.size()];
      EXPECT_OK(matcher.Advance(token));
      if (token == 1) return step + 1;
      for (const char byte : vocabulary_->TokenBytes(token)) {
        stacks = reference_->Step(stacks, static_cast<uint8_t>(byte));
      }
    }
    return tokens_max;
  }

 private:
  // Returns the allowed tokens, after a check that they are those that the reference allows.
  std::vector<TokenId> Compare(absl::Span<const uint32_t> allowed, const Stacks& stacks) {
    std::map<std::string, Stacks> known = {{"", stacks}};
    std::vector<TokenId> tokens;
    for (TokenId id = 0; id < vocabulary_->size(); ++id) {
      const bool is_allowed = (allowed[static_cast<size_t>(id) / 32] >> (id % 32)) & 1;
      const std::string bytes(vocabulary_->TokenBytes(id));
      bool feasible = id == 1 && SlowReference::MayEnd(stacks);
      if (!bytes.empty()) feasible = !After(bytes, known).empty();
      EXPECT_EQ(is_allowed, feasible) << "token " << id << " " << bytes;
      if (is_allowed) tokens.push_back(id);
    }
    return tokens;
  }

  const Stacks& After(const std::string& bytes, std::map<std::string, Stacks>& known) {
    if (const auto it = known.find(bytes); it != known.end()) return it->second;
    const Stacks& before = After(bytes.substr(0, bytes.size() - 1), known);
    Stacks after;
    if (!before.empty()) after = reference_->Step(before, static_cast<uint8_t>(bytes.back()));
    return known.emplace(bytes, std::move(after)).first->second;
  }

  const std::shared_ptr<const Vocabulary> vocabulary_;
  std::mt19937_64& random_;
  CompileBudget budget_;
  GrammarBuilder builder_{budget_};
  RuleId root_ = -1;
  std::unique_ptr<SlowReference> reference_;
  std::shared_ptr<Constraint> constraint_;
};

TEST(Mask, EqualsTheSlowReferenceOnARandomVocabulary) {
  const uint64_t seed = std::random_device()();
  std::cout << "seed " << seed << "\n";
  std::mt19937_64 random(seed);
  const auto vocabulary = RandomVocabulary(random);
  int masks = 0;
  for (const Case& c : kCases) {
    SCOPED_TRACE(c.text);
    Walk walk(c, vocabulary, random);
    for (int i = 0; i < 4; ++i) masks += walk.Run(25);
  }
  std::cout << masks << " masks\n";
  EXPECT_GT(masks, 150);
}

TEST(Mask, EqualsTheSlowReferenceOnTheRealVocabulary) {
  TANDEM_FIND_MODEL_OR_SKIP(path, testing::kSmolLm2File);
  ASSERT_OK_AND_ASSIGN(const auto checkpoint, model::Checkpoint::Open(path));
  ASSERT_OK_AND_ASSIGN(const auto tokenizer, model::Tokenizer::Create(checkpoint->tokenizer()));
  const std::vector<TokenId> eos = {1};
  const auto vocabulary =
      Vocabulary::FromTokenizer(*tokenizer, checkpoint->config().vocab_size, eos);
  const uint64_t seed = std::random_device()();
  std::cout << "seed " << seed << "\n";
  std::mt19937_64 random(seed);
  int masks = 0;
  for (const Case& c : kCases) {
    SCOPED_TRACE(c.text);
    Walk walk(c, vocabulary, random);
    masks += walk.Run(8);
  }
  std::cout << masks << " masks of " << vocabulary->size() << " tokens\n";
  EXPECT_GT(masks, 20);
}

}  // namespace
}  // namespace tandem::guided
