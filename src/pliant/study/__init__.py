"""Studies: many runs on one grid, and what may honestly be said about them.

A results table has one row a run. Columns name what was run (data, model, method, lr, weight_decay, optimizer, rank,
seed, n_train, ...) and what came out (val_top1, test_top1, train_top1 as fractions from 0 to 1; trained_parameters);
NaN stands for what a run does not have, such as the rank of a head, or the accuracy of a run that failed. The row of
the linear probe (logistic regression on frozen features, docs of arXiv 2602.06883) has the method `probe`.
"""
