/* czero: a DeepSpeed-compatible training engine in C. Include this one.
 *
 *   struct cz_model *model = cz_model_from_hf("path/to/gpt2");
 *   struct cz_engine *engine = engine_initialize("ds_config.json", model);
 *   while (engine_get_global_steps(engine) < 1000 && cz_data_next(loader, &batch) == CZ_OK) {
 *       engine_forward(engine, &batch, &loss);
 *       engine_backward(engine);
 *       engine_step(engine);
 *   }
 *   engine_destroy(engine);
 *
 * Link with -lczero (pkg-config czero, or find_package(czero) in CMake). */
#ifndef CZERO_H
#define CZERO_H

#include "base/dtype.h"
#include "base/log.h"
#include "base/status.h"
#include "data/data.h"
#include "data/labelled/text_loader.h"
#include "engine/engine.h"
#include "engine/state/checkpoint.h"
#include "model/model.h"
#include "model/parts/parts.h"
#include "ops/activation/activation.h"
#include "ops/attention/attention.h"
#include "ops/cross_entropy/cross_entropy.h"
#include "ops/dropout/dropout.h"
#include "ops/elementwise/elementwise.h"
#include "ops/embedding/embedding.h"
#include "ops/matmul/matmul.h"
#include "ops/norm/norm.h"
#include "ops/ops.h"
#include "ops/reduce/reduce.h"
#include "ops/rope/rope.h"

#endif
