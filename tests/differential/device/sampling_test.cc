// Goal: the device's sampler follows its specification: choices, filters and logprobs equal a
// sort-everything reference in double on random parameters, and to the bit the CPU's vector
// classes, whatever the parameters and logits; a row does not depend on the others; ties, masks and
// hostile logits are safe.
#include <algorithm>
#include <cmath>
#include <limits>

#include "device_fixture.h"
#include "kernels/api/backend.h"
#include "kernels/api/device_sampling.h"

namespace tandem::kernels {
namespace {

// One row's inputs, owned.
struct Row {
  std::vector<float> logits;
  std::vector<TokenBias> biases;
  std::vector<TokenCount> counts;
  std::vector<uint32_t> allowed;
  SamplingArgs args;  // everything but pointers
};

struct Outcome {
  SamplingResult result;
  std::vector<TokenLogprob> top;
};

class DeviceSamplingTest : public DeviceTest {
 protected:
  Row RandomRow(int32_t vocab) {
    Row row;
    row.logits = Normal(static_cast<size_t>(vocab), 4.0f);
    for (int32_t i = Uniform(0, 5); i > 0; --i) {
      row.biases.push_back({Uniform(0, vocab - 1), 5.0f});
      if (Uniform(0, 3) == 0) row.biases.push_back({row.biases.back().token, -1.5f});
    }
    std::stable_sort(row.biases.begin(), row.biases.end(),
                     [](const TokenBias& a, const TokenBias& b) { return a.token < b.token; });
    for (int32_t token = 0; token < vocab; token += Uniform(1, 200)) {
      row.counts.push_back({token, Uniform(0, 2), Uniform(0, 3)});
    }
    if (Uniform(0, 2) == 0) {
      row.allowed.assign(static_cast<size_t>(vocab / 32 + 1), 0);
      for (uint32_t& word : row.allowed) word = static_cast<uint32_t>(generator_() | generator_());
    }
    SamplingArgs& args = row.args;
    args.vocab_size = vocab;
    args.temperature = Uniform(0, 4) == 0 ? 0.0f : 0.1f * static_cast<float>(Uniform(1, 20));
    if (Uniform(0, 1) == 0) args.top_k = Uniform(1, 60);
    if (Uniform(0, 1) == 0) args.top_p = 0.01f * static_cast<float>(Uniform(1, 99));
    if (Uniform(0, 2) == 0) args.min_p = 0.01f * static_cast<float>(Uniform(1, 30));
    if (Uniform(0, 1) == 0) args.repetition_penalty = 1.3f;
    if (Uniform(0, 1) == 0) args.presence_penalty = 0.7f;
    if (Uniform(0, 1) == 0) args.frequency_penalty = -0.2f;
    args.seed = generator_();
    args.sequence_index = static_cast<uint32_t>(Uniform(0, 9));
    args.position = static_cast<uint32_t>(Uniform(0, 100000));
    args.want_logprob = true;
    args.num_top_logprobs = std::min(4, vocab);
    return row;
  }

  // All rows in one launch. REQUIRES: one vocabulary.
  std::vector<Outcome> Choose(const std::vector<Row>& rows) {
    const size_t vocab = rows[0].logits.size();
    std::vector<float> logits;
    std::vector<DeviceBuffer> held;
    std::vector<DeviceSampleRow> parameters;
    std::vector<const DeviceBuffer*> tops;
    held.reserve(rows.size() * 4);
    for (const Row& row : rows) {
      logits.insert(logits.end(), row.logits.begin(), row.logits.end());
      DeviceSampleRow p;
      p.known_token = known_token_;
      p.temperature = row.args.temperature;
      p.top_k = row.args.top_k;
      p.top_p = row.args.top_p;
      p.min_p = row.args.min_p;
      p.repetition_penalty = row.args.repetition_penalty;
      p.presence_penalty = row.args.presence_penalty;
      p.frequency_penalty = row.args.frequency_penalty;
      p.num_biases = static_cast<int32_t>(row.biases.size());
      p.num_counts = static_cast<int32_t>(row.counts.size());
      p.biases = held.emplace_back(Upload(row.biases)).as<TokenBias>();
      p.counts = held.emplace_back(Upload(row.counts)).as<TokenCount>();
      const uint32_t* allowed = held.emplace_back(Upload(row.allowed)).as<uint32_t>();
      p.allowed_tokens = row.allowed.empty() ? nullptr : allowed;
      p.seed = row.args.seed;
      p.sequence_index = row.args.sequence_index;
      p.position = row.args.position;
      p.want_logprob = row.args.want_logprob ? 1 : 0;
      p.num_top_logprobs = row.args.num_top_logprobs;
      held.push_back(Poisoned(std::max(1, p.num_top_logprobs) * sizeof(TokenLogprob)));
      p.top_logprobs = held.back().as<TokenLogprob>();
      parameters.push_back(p);
    }
    const DeviceBuffer dlogits = Upload(logits), dparameters = Upload(parameters);
    const DeviceBuffer work = Poisoned(logits.size() * sizeof(float));
    const DeviceBuffer results = Poisoned(rows.size() * sizeof(SamplingResult));
    ops().sample(
        {dlogits.as<float>(), static_cast<int32_t>(vocab), static_cast<int32_t>(rows.size()),
         dparameters.as<DeviceSampleRow>(), work.as<float>(), results.as<SamplingResult>()},
        stream());
    const auto chosen = Download<SamplingResult>(results, rows.size());
    std::vector<Outcome> outcomes;
    for (size_t i = 0; i < rows.size(); ++i) {
      outcomes.push_back(
          {chosen[i], Download<TokenLogprob>(held[i * 4 + 3],
                                             static_cast<size_t>(rows[i].args.num_top_logprobs))});
    }
    return outcomes;
  }

  // By a host's backend.
  Outcome Expected(Row row, const Backend& backend) {
    std::vector<char> room(SamplingScratchBytes(row.args.vocab_size) + 64);
    const uintptr_t begin = reinterpret_cast<uintptr_t>(room.data());
    row.args.scratch = room.data() + (64 - begin % 64);
    Outcome outcome;
    outcome.top.resize(static_cast<size_t>(row.args.num_top_logprobs));
    row.args.logits = row.logits.data();
    row.args.biases = row.biases.data();
    row.args.num_biases = static_cast<int32_t>(row.biases.size());
    row.args.counts = row.counts.data();
    row.args.num_counts = static_cast<int32_t>(row.counts.size());
    row.args.allowed_tokens = row.allowed.empty() ? nullptr : row.allowed.data();
    row.args.top_logprobs = outcome.top.data();
    outcome.result = backend.sample(row.args);
    return outcome;
  }

  // A cluster of eight blocks takes the emulator ten times as long as one block.
  static int EmulatedRounds(int of_one_block) {
    return GetParam() == DeviceKind::kEmulatedHopper ? of_one_block / 2 : of_one_block;
  }

  // On Hopper so large that rows get clusters of two, four and eight blocks.
  static int32_t VocabMax() { return GetParam() == DeviceKind::kEmulatedHopper ? 14000 : 3000; }

  int32_t known_token_ = -1;  // of all rows
};
INSTANTIATE_TEST_SUITE_P(All, DeviceSamplingTest, kDeviceKindsWithHopper, DeviceName);

TEST_P(DeviceSamplingTest, AgreesWithSortingInDouble) {
  // fp32 and double may differ where two scores, or a probability and top-p's border, lie within a
  // few roundings of each other: a chance of about 1e-5 a draw. Anything systematic shows.
  const int rounds = emulated() ? EmulatedRounds(12) : 300;
  int different = 0;
  for (int round = 0; round < rounds; ++round) {
    const int32_t vocab = Uniform(1, VocabMax());
    std::vector<Row> rows;
    for (int i = 0; i < 4; ++i) rows.push_back(RandomRow(vocab));
    const std::vector<Outcome> actual = Choose(rows);
    for (size_t i = 0; i < rows.size(); ++i) {
      const Outcome expected = Expected(rows[i], *FindBackend(IsaClass::kRef));
      if (actual[i].result.token != expected.result.token) {
        ++different;
      } else if (expected.result.token >= 0) {
        ASSERT_NEAR(actual[i].result.logprob, expected.result.logprob,
                    32 * kUnit * (2 + std::abs(expected.result.logprob)));
      }
      for (size_t t = 0; t < expected.top.size(); ++t) {
        ASSERT_EQ(actual[i].top[t].token, expected.top[t].token);
        ASSERT_NEAR(actual[i].top[t].logprob, expected.top[t].logprob,
                    32 * kUnit * (2 + std::abs(expected.top[t].logprob)));
      }
    }
  }
  EXPECT_LE(different, 1);
}

// Options that single out what a host's shortcuts and the device's passes do differently.
void Vary(int choice, Row* row) {
  SamplingArgs& args = row->args;
  switch (choice) {
    case 0:  // the short way of a greedy row
      row->biases.clear();
      row->counts.clear();
      row->allowed.clear();
      args.temperature = 0;
      break;
    case 1:  // noise over the whole vocabulary
      args.top_k = 0;
      args.top_p = 1;
      args.min_p = 0;
      break;
    case 2:  // ties at every border
      for (float& logit : row->logits) logit = std::round(logit);
      break;
    case 3:
      for (size_t i = 0; i < row->logits.size(); i += 3) row->logits[i] = i % 2 ? -INFINITY : NAN;
      break;
    case 4:
      args.num_top_logprobs = std::min(20, args.vocab_size);
      break;
    case 5:  // nearly flat: few bins of a histogram get all tokens, and masses that carry
      for (float& logit : row->logits) logit = 1 + logit * 1e-4f;
      args.temperature = 1;
      args.top_k = 0;
      args.min_p = 0;
      args.top_p = 0.37f;
      break;
    default:
      break;
  }
}

// Hopper's kernels share a row among eight, four or two blocks, as there are few rows or many.
TEST_P(DeviceSamplingTest, ARowDoesNotDependOnItsBlocks) {
  const Backend& host = BestPortableBackend();
  if (host.isa == IsaClass::kRef) GTEST_SKIP() << "needs AVX2: the reference computes in double";
  Row row = RandomRow(Uniform(9000, 12000));
  row.args.num_top_logprobs = 20;
  // Filters that end in the list, and others that scan the row, nearly flat or not.
  for (const bool flat : {false, true}) {
    if (flat) Vary(5, &row);
    const Outcome expected = Expected(row, host);
    for (const size_t rows : {1, 17, 33, 65}) {
      Row cheap = row;  // the others'
      cheap.args.num_top_logprobs = 0;
      cheap.args.want_logprob = false;
      cheap.args.temperature = 0;
      std::vector<Row> batch(rows, cheap);
      batch.back() = row;
      const Outcome actual = Choose(batch).back();
      EXPECT_EQ(actual.result.token, expected.result.token) << rows << " rows";
      ExpectSameBits(&actual.result.logprob, &expected.result.logprob, 1, "logprob");
      for (size_t t = 0; t < expected.top.size(); ++t) {
        ASSERT_EQ(actual.top[t].token, expected.top[t].token) << "top " << t << ", " << rows;
        ExpectSameBits(&actual.top[t].logprob, &expected.top[t].logprob, 1, "top logprob");
      }
    }
  }
}

TEST_P(DeviceSamplingTest, EqualsTheHostToTheBit) {
  const Backend& host = BestPortableBackend();
  if (host.isa == IsaClass::kRef) GTEST_SKIP() << "needs AVX2: the reference computes in double";
  const int rounds = emulated() ? EmulatedRounds(8) : 300;
  for (int round = 0; round < rounds; ++round) {
    // Now and then a vocabulary whose sum takes more than one pass.
    const int32_t vocab = round % 8 == 0 ? Uniform(32000, 70000) : Uniform(1, VocabMax());
    std::vector<Row> rows;
    for (int i = 0; i < (vocab >= 32000 ? 2 : 7); ++i) {
      rows.push_back(RandomRow(vocab));
      Vary(vocab >= 32000 ? Uniform(0, 6) : i, &rows.back());
    }
    const std::vector<Outcome> actual = Choose(rows);
    for (size_t i = 0; i < rows.size(); ++i) {
      const Outcome expected = Expected(rows[i], host);
      ASSERT_EQ(actual[i].result.token, expected.result.token) << "row " << i << " of " << vocab;
      ExpectSameBits(&actual[i].result.logprob, &expected.result.logprob, 1, "logprob");
      for (size_t t = 0; t < expected.top.size(); ++t) {
        ASSERT_EQ(actual[i].top[t].token, expected.top[t].token) << "top " << t << ", row " << i;
        ExpectSameBits(&actual[i].top[t].logprob, &expected.top[t].logprob, 1, "top logprob");
      }
    }
  }
}

// Counts and biases of more tokens than a pass marks at once.
TEST_P(DeviceSamplingTest, AdjustsTokensOfALargeVocabulary) {
  const Backend& host = BestPortableBackend();
  if (host.isa == IsaClass::kRef) GTEST_SKIP() << "needs AVX2: the reference computes in double";
  const int32_t vocab = Uniform(196609, 200000);
  for (const bool biased : {false, true}) {
    Row row = RandomRow(vocab);
    row.args.num_top_logprobs = 0;
    row.args.temperature = 0.7f;
    row.args.repetition_penalty = 1.5f;
    // The best tokens, on both sides of the border, are seen; the bias decides between them.
    row.logits[1000] = 80;
    row.logits[196608] = 80.5f;
    row.counts = {{1000, 1, 0}, {196608, 1, 2}};
    row.biases.clear();
    if (biased) row.biases = {{1000, 0.5f}, {1000, 0.5f}, {196608, -0.5f}};
    const Outcome expected = Expected(row, host);
    const Outcome actual = Choose({row})[0];
    EXPECT_EQ(actual.result.token, expected.result.token);
    ExpectSameBits(&actual.result.logprob, &expected.result.logprob, 1, "logprob");
  }
}

TEST_P(DeviceSamplingTest, AKnownTokenIsScored) {
  Row row = RandomRow(Uniform(2, 500));
  const int32_t token = Uniform(0, row.args.vocab_size - 1);
  row.allowed.assign(static_cast<size_t>(row.args.vocab_size / 32 + 1), 0);
  row.allowed[static_cast<size_t>(token / 32)] = 1u << (token % 32);
  row.args.temperature = 0;
  const Outcome drawn = Choose({row})[0];
  known_token_ = token;
  const Outcome scored = Choose({row})[0];
  EXPECT_EQ(scored.result.token, token);
  ExpectSameBits(&scored.result.logprob, &drawn.result.logprob, 1, "logprob");
}

TEST_P(DeviceSamplingTest, ARowDoesNotDependOnTheOthers) {
  const int32_t vocab = Uniform(100, VocabMax());
  std::vector<Row> rows;
  for (int i = 0; i < 5; ++i) rows.push_back(RandomRow(vocab));
  const std::vector<Outcome> together = Choose(rows);
  for (size_t i = 0; i < rows.size(); ++i) {
    const Outcome alone = Choose({rows[i]})[0];
    EXPECT_EQ(alone.result.token, together[i].result.token);
    ExpectSameBits(&alone.result.logprob, &together[i].result.logprob, 1, "logprob");
  }
}

// Top-p's selection ends at a bin that holds one kept token. Tokens that top-k dropped may lie in
// the same bin: here all logits share the key's first bits.
TEST_P(DeviceSamplingTest, TopPDrawsNoTokenThatTopKDropped) {
  Row row;
  row.args.vocab_size = 48;
  for (int token = 0; token < 48; ++token) {
    row.logits.push_back(3.99f - 0.01f * static_cast<float>(token));
  }
  row.args.top_p = 0.9f;
  std::vector<Row> rows;
  for (uint32_t position = 0; position < 64; ++position) {
    row.args.top_k = 1 + static_cast<int32_t>(position % 3);
    row.args.position = position;
    rows.push_back(row);
  }
  const std::vector<Outcome> outcomes = Choose(rows);
  for (size_t i = 0; i < rows.size(); ++i) {
    EXPECT_TRUE(outcomes[i].result.token >= 0 && outcomes[i].result.token < rows[i].args.top_k)
        << outcomes[i].result.token << " with top-k " << rows[i].args.top_k;
  }
}

// A lost carry takes 2^32 from a sum of masses, a 256th of a likely token's mass. Here top-p's
// target lies half of that below the first three tokens' masses. Different warps add two of these
// tokens to one bin.
TEST_P(DeviceSamplingTest, MassesCarryAtTheBorderOfTopP) {
  constexpr float kStep = 0x1p-14f;
  Row row;
  row.args.vocab_size = 64;
  row.logits = {1, 1 - kStep, 1 - kStep};
  row.logits.resize(64, 1 - 2 * kStep);
  const double first = std::exp(-double{kStep}), later = std::exp(-2 * double{kStep});
  const double kept = 1 + 2 * first;
  row.args.top_p = static_cast<float>((kept - 0x1p-9) / (kept + 61 * later));
  std::vector<Row> rows;
  for (uint32_t position = 0; position < 64; ++position) {
    row.args.position = position;
    rows.push_back(row);
  }
  std::vector<int> drawn(64);
  for (const Outcome& outcome : Choose(rows)) {
    ASSERT_TRUE(outcome.result.token >= 0 && outcome.result.token < 64);
    ++drawn[static_cast<size_t>(outcome.result.token)];
  }
  for (size_t token = 0; token < 64; ++token) {
    EXPECT_EQ(drawn[token] > 0, token < 3) << token << ": " << drawn[token] << " of 64";
  }
}

TEST_P(DeviceSamplingTest, TiesMasksAndHostileLogits) {
  Row row;
  row.args.vocab_size = 100;
  for (int32_t i = 0; i < 100; ++i) row.logits.push_back(i >= 37 ? 2.5f : -1.0f);
  row.args.temperature = 0;
  EXPECT_EQ(Choose({row})[0].result.token, 37);
  // top-k among equals keeps the lowest ids, so the draw never leaves them.
  row.args.temperature = 1;
  row.args.top_k = 3;
  row.args.num_top_logprobs = 5;
  std::vector<Row> rows;
  for (uint32_t position = 0; position < 8; ++position) {
    row.args.position = position;
    rows.push_back(row);
  }
  for (const Outcome& outcome : Choose(rows)) {
    EXPECT_TRUE(outcome.result.token >= 37 && outcome.result.token < 40) << outcome.result.token;
    for (int32_t i = 0; i < 5; ++i) EXPECT_EQ(outcome.top[static_cast<size_t>(i)].token, 37 + i);
  }
  Row hostile;
  hostile.logits = Normal(40);
  hostile.logits[3] = NAN;
  hostile.logits[9] = -INFINITY;
  hostile.logits[20] = INFINITY;
  hostile.args.vocab_size = 40;
  for (float temperature : {0.0f, 1e-30f, 1.0f}) {
    hostile.args.temperature = temperature;
    EXPECT_EQ(Choose({hostile})[0].result.token, 20) << temperature;
  }
  hostile.allowed = {0, 0};
  for (float top_p : {1.0f, 0.5f}) {
    hostile.args.top_p = top_p;
    EXPECT_EQ(Choose({hostile})[0].result.token, -1);
  }
  hostile.allowed[1] = 1u << 7;  // token 39 alone
  EXPECT_EQ(Choose({hostile})[0].result.token, 39);
}

// Quotients and penalties may take finite logits beyond the floats. That excludes no token.
TEST_P(DeviceSamplingTest, FiniteLogitsCanBeChosenWhateverDividesThem) {
  Row row;
  row.logits = Normal(40);
  for (float& logit : row.logits) logit -= 50;
  row.args.vocab_size = 40;
  row.allowed = {1u << 5, 0};
  for (const bool biased : {false, true}) {
    row.biases.clear();
    if (biased) row.biases = {{5, -100}};
    for (const float temperature : {1e-38f, 2e-38f, 1e-45f, 1.0f, 0.0f}) {
      for (const bool penalised : {false, true}) {
        row.args.temperature = temperature;
        row.args.repetition_penalty = penalised ? std::numeric_limits<float>::max() : 1.0f;
        row.counts.clear();
        if (penalised) row.counts = {{5, 1, 1}};
        row.args.top_p = 0.5f;
        EXPECT_EQ(Choose({row})[0].result.token, 5) << temperature << penalised << biased;
        row.args.top_p = 1;
        EXPECT_EQ(Choose({row})[0].result.token, 5) << temperature << penalised << biased;
      }
    }
  }
}

}  // namespace
}  // namespace tandem::kernels
