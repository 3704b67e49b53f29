#pragma once

/// Everything that a program needs to train. Costs no CAF header.
#include <troupe/app.hpp>
#include <troupe/config.hpp>
#include <troupe/error.hpp>
#include <troupe/framework.hpp>
#include <troupe/random.hpp>
#include <troupe/result.hpp>
#include <troupe/tracked_state.hpp>
#include <troupe/train_context.hpp>
#include <troupe/trainer.hpp>
#include <troupe/types.hpp>
