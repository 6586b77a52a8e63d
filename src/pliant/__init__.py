"""pliant"""
