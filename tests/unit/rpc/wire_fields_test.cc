// Goal: every sampling and stop parameter survives the way over the wire, in the field of its own
// name; no field of the messages is without a row.
#include "common/rpc/wire_fields.h"

#include <algorithm>
#include <cstdio>
#include <set>

#include "common/rpc/convert.h"
#include "tests/testing/parameter_samples.h"
#include "tests/testing/status_matchers.h"

namespace tandem::rpc {
namespace {

// The names of the fields that are set.
std::vector<std::string> FieldsOf(const google::protobuf::Message& message) {
  std::vector<const google::protobuf::FieldDescriptor*> fields;
  message.GetReflection()->ListFields(message, &fields);
  std::vector<std::string> names;
  for (const auto* field : fields) names.push_back(field->name());
  return names;
}

template <typename Message>
Message Reparsed(const Message& message) {
  Message parsed;
  EXPECT_TRUE(parsed.ParseFromString(message.SerializeAsString()));
  return parsed;
}

TEST(WireFields, EveryFieldHasARow) {
  std::set<std::string> names;
  request::ForEachParameter([&](const auto& row) { names.insert(std::string(row.about.name)); });
  for (const auto* descriptor : {v1::SamplingParams::descriptor(), v1::StopParams::descriptor()}) {
    for (int i = 0; i < descriptor->field_count(); ++i) {
      EXPECT_EQ(names.erase(descriptor->field(i)->name()), 1u) << descriptor->field(i)->full_name();
    }
  }
  EXPECT_TRUE(names.empty());
}

TEST(WireFields, AnAbsentFieldLeavesTheDefault) {
  const request::SamplingParams sampling = FromWire(v1::SamplingParams());
  const request::StopParams stop = FromWire(v1::StopParams());
  request::ForEachParameter([&](const auto& row) {
    using Params = typename std::decay_t<decltype(row)>::params_type;
    const Params& params = testing::PartOf(row, sampling, stop);
    EXPECT_EQ(params.*row.member, Params().*row.member) << row.about.name;
  });
}

TEST(WireFields, EachParameterTravelsInTheFieldOfItsName) {
  const uint64_t seed = std::random_device()();
  std::printf("seed %lu\n", static_cast<unsigned long>(seed));
  testing::Generator random(seed);
  for (int i = 0; i < 100; ++i) {
    request::ForEachParameter([&](const auto& row) {
      using Params = typename std::decay_t<decltype(row)>::params_type;
      Params params;
      testing::Sample(row.about, random, &(params.*row.member));
      auto without = ToWire(Params());
      const auto wire = Reparsed(ToWire(params));
      const std::vector<std::string> fields = FieldsOf(wire);
      EXPECT_NE(std::find(fields.begin(), fields.end(), row.about.name), fields.end())
          << row.about.name;
      const Params back = FromWire(wire);
      EXPECT_EQ(back.*row.member, params.*row.member) << row.about.name;
      // No other field differs from that of the default parameters.
      auto rest = wire;
      const auto* field = wire.GetDescriptor()->FindFieldByName(std::string(row.about.name));
      rest.GetReflection()->ClearField(&rest, field);
      without.GetReflection()->ClearField(&without, field);
      EXPECT_EQ(rest.DebugString(), without.DebugString()) << row.about.name;
    });
  }
}

TEST(WireFields, ListsComeOutInOrderAndMinusOneTurnsTopKOff) {
  v1::SamplingParams wire;
  for (const int32_t id : {5, 2, 9}) wire.add_allowed_token_ids(id);
  for (const int32_t id : {5, 2, 9}) (*wire.mutable_logit_bias())[id] = 1.0f;
  wire.set_top_k(-1);
  const request::SamplingParams params = FromWire(wire);
  EXPECT_EQ(params.allowed_token_ids, (std::vector<TokenId>{2, 5, 9}));
  EXPECT_EQ(params.logit_bias,
            (std::vector<std::pair<TokenId, float>>{{2, 1.f}, {5, 1.f}, {9, 1.f}}));
  EXPECT_EQ(params.top_k, 0);
}

}  // namespace
}  // namespace tandem::rpc
